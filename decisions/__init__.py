"""The decisions: pure functions from frozen values to frozen values (PIP-483 on the layout of PIP-468).

No Spark, Kafka, Delta, clock, log or random: `now` is an argument. In the order in which a topic meets them:

- `hashing`, `names`, `layout`   keys, segments, split, merge, lineage
- `policy`              the knobs, their profiles, their resolution
- `significance`        which sample becomes a load record
- `snapshot`            what one evaluation sees
- `decide`, `answers`, `gates`   the two passes, what they answer, and every reason for holding
"""
