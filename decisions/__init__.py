"""The decisions: pure functions from frozen values to frozen values (PIP-483 on the layout of PIP-468).

No Spark, Kafka, Delta, clock, log or random: `now` is an argument. In the order in which a topic meets them:

- `hashing`, `names`, `layout`   keys, segments, split, merge, lineage
- `quantities`, `policy`         the knobs, their profiles, their resolution, their rules
- `rates`, `significance`        a segment's load against the thresholds; which sample becomes a load record
- `snapshot`                     what one evaluation sees
- `gates`, `answers`, `decide`   every reason for holding, what is answered, and the two passes
- `fleet`                        the same for many topics at once, over columns
"""
