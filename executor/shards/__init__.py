"""Several executors, one active for each shard of the subjects; the others stand by and take over.

- `limits`    pure: what one shard has of the brakes that count
- `members`   pure: who is there, who has which shard, and what becomes of that at each beat
- `register`  the same as rows of a table of the lake that is replaced as a whole
- `holding`   the beats of one process: renewals, shards begun and given up, and until when a call may be begun
"""
