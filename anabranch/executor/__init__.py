"""Apply decisions: tail the `decisions` table, call the admin REST interface, record outcomes.

Stage: after the Spark job, before the cluster; a plain process without a JVM. It never decides, and its memory is never
proof: whether a call took effect is read from the cluster (design "What must always hold", 2).

- `kernel/`    shared by all families of decisions: the loop, the outcome table, announcements
- `autoscale/` actor and judge for splits and merges of a topic's segments
- `bundles/`   actor and judge for unloads and splits of a Pulsar cluster's bundles
- `replies`    replies of the admin client, translated for the kernel
- `shards/`    several executors, one active for each shard of the subjects; leases on shards
- `metrics`    Prometheus metrics
- `process`    the process, assembled from the settings

Elsewhere: `anabranch.safeguards` (pauses, approvals, rate limits, stops, windows), `anabranch.bookkeeper` (switches to
another BookKeeper cluster, in a process of its own).
"""
