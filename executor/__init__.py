"""Applies decisions: tails the `decisions` table, calls the admin REST interface, records and announces outcomes.

Stage: after the Spark job, before the cluster; a plain process without a JVM. It never decides, and what it remembers
is never proof: whether a call took effect is read off the layout (DESIGN section 5, rule 2). Each module may import
only those above it:

- `decision`   a row of `decisions` as a value, or why it is none
- `judge`      pure: decision and live layout in, verdict out
- `admin`      what the admin client's answers tell about a decision
- `attempt`    one try at one decision: look, judge, call, look again
- `tail`       new rows of `decisions`, by table version
- `outcomes`   rows of `outcomes`, and the lease that lets one executor write them
- `publisher`  outcome events to Kafka
- `workers`    the threads that make calls
- `loop`       the work in hand, topic by topic: record, then act; persist, then wait
- `process`    all of it put together from the settings
"""
