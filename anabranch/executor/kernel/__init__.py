"""Kernel of the executor, shared by all families: rows in, intents, calls, outcomes.

The kernel never depends on the family of a decision. Each module may import only those above it:

- `family`     interface of a family: read, look, judge, describe, call
- `decision`   rows of `decisions`, followed by table version, as values; or the reason why a row is malformed
- `attempt`    one try at one decision (look, judge, call, look again), and the state of an open one
- `outcomes`   rows of `outcomes`, written by one executor at a time
- `publisher`  outcome events to Kafka
- `announcer`  outcomes, announced until the job has recorded them
- `workers`    threads that make calls
- `outages`    times at which the lake cannot be read or written
- `loop`       the main loop over open decisions: record, then act; persist, then wait
"""
