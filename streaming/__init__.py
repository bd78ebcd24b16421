"""The Spark job around the engine: raw Kafka rows in, decisions, holds, loads and events out.

- `sources`     two Kafka sources as raw rows, each with its bucket
- `processor`   the stateful operator: a thin adapter around `engine.kernel.bucket`
- `sink`        foreachBatch: consumes once, then writes the tables idempotently
- `ticks`       the driver's tick writer
- `job`         composes them, on top of `session` and `checkpoint`
"""
