"""Applies decisions: tails the `decisions` table, calls the admin REST interface, records and announces outcomes.

Stage: after the Spark job, before the cluster; a plain process without a JVM. It never decides, and what it remembers
is never proof: whether a call took effect is read off the cluster (DESIGN section 5, rule 2). The kernel works for any
family of decisions; what acts and judges for one is in a folder of its own. Each module may import only those above it,
and the kernel nothing of a family:

- `admin`      the admin REST interface, every answer typed
- `family`     what a family brings along: read, look, judge, describe, call
- `decision`   rows of `decisions`, followed by table version, as values, or why one is none
- `attempt`    one try at one decision: look, judge, call, look again
- `outcomes`   rows of `outcomes`, written by one executor at a time
- `publisher`  outcome events to Kafka
- `workers`    the threads that make calls
- `backoff`    delays before something is tried again
- `loop`       the work in hand, subject by subject: record, then act; persist, then wait
- `autoscale/` splits and merges of a topic's segments
- `process`    all of it put together from the settings
"""
