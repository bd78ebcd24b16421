"""The Spark job around the engine: raw Kafka rows in, decisions, holds, loads and events out.

- `job`         `job.sources` (Kafka as raw rows, each with its bucket), `job.ticks` (the driver's tick writer), and
  `job.job`, which composes all parts on top of `job.session`
- `operator`    `operator.processor`, the stateful operator: a thin adapter around `engine.kernel.bucket`
- `sink`        foreachBatch: consumes once, then writes the tables idempotently
- `checkpoint`  claim, storage and upgrade of the checkpoint
"""
