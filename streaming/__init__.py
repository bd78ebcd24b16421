"""The Spark job around the engine: raw Kafka rows in, decisions, holds, loads, events and dead letters out.

- `sources`     two Kafka sources as raw rows, each with its bucket
- `processor`   the stateful operator: a thin adapter around `engine.kernel.bucket`
- `sink`        foreachBatch: consumes once, then writes the tables idempotently
- `ticks`       the driver's tick writer
- `job`         puts them together; `session` and `checkpoint` are what it stands on
"""
