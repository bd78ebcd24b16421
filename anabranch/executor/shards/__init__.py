"""Several executors, one active for each shard of the subjects; the others stand by and take over.

- `limits`    pure: share of one shard in the rate limits
- `members`   pure: membership, assignment of shards, and their changes at each heartbeat
- `register`  membership as rows of a lake table that is replaced as a whole
- `holding`   heartbeats of one process: lease renewals, shards taken and released, deadline for new calls
"""
