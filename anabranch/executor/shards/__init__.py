"""Several executors, one active for each shard of the subjects; the others stand by and take over.

- `members`   pure: membership, assignment of shards, their changes at each heartbeat, their parts of the rate limits
- `register`  membership as rows of a lake table that is replaced as a whole
- `holding`   heartbeats of one process: lease renewals, shards taken and released, deadline for new calls
"""
