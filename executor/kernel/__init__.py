"""What every family of decisions shares in the executor: rows in, intents and outcomes on record, calls in between.

The kernel never asks which family a decision is of. Each module may import only those above it:

- `family`     what a family provides: read, look, judge, describe, call
- `decision`   rows of `decisions`, followed by table version, as values, or why one is none
- `attempt`    one try at one decision: look, judge, call, look again
- `outcomes`   rows of `outcomes`, written by one executor at a time
- `publisher`  outcome events to Kafka
- `announcer`  outcomes, announced until the job has recorded them
- `workers`    the threads that make calls
- `backoff`    delays before something is tried again
- `outages`    times at which the lake cannot be read or written
- `work`       one open decision, as the loop keeps it
- `loop`       the open decisions, each by itself: record, then act; persist, then wait
"""
