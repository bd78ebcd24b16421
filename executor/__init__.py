"""Applies decisions: tails the `decisions` table, calls the admin REST interface, records and announces outcomes.

Stage: after the Spark job, before the cluster; a plain process without a JVM. It never decides, and what it remembers
is never proof: whether a call took effect is read off the cluster (design "What must always hold", 2).

- `kernel/`    what every family of decisions shares: the loop, the record, the announcements
- `brakes/`    what may act when: pauses, approvals, rates, stops, windows
- `autoscale/` what acts and judges for splits and merges of a topic's segments
- `replies`    what the admin client's replies tell the kernel
- `shards/`    several executors, one active for each shard of the subjects; who has which, and until when
- `metrics`    what Prometheus is told
- `process`    all of it put together from the settings
"""
