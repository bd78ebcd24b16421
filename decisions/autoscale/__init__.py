"""When to split and when to merge (PIP-483). In the order in which a topic meets them:

- `policy`                       the knobs, their profiles, their resolution, their rules
- `rates`, `significance`        a segment's load against the thresholds; which sample becomes a load record
- `snapshot`                     what one evaluation sees
- `gates`, `answers`, `decide`   every reason for holding, what is answered, and the two passes
- `clocks`                       what a layout, a sample, an outcome or a changed policy does to what is remembered
- `fleet`                        the same for many topics at once, over columns
"""
