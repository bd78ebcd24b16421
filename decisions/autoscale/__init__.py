"""Rules for splits and merges (PIP-483). In the order in which a topic meets them:

- `policy`                       the knobs, their profiles, their resolution, their rules
- `rates`, `significance`        a segment's load against the thresholds; which sample becomes a load record
- `snapshot`                     what one evaluation sees
- `gates`                        every reason for holding, and which of them binds
- `clocks`                       what a layout, a sample, an outcome or a changed policy does to what is remembered
- `answers`, `decide`            what is answered, and the two passes
- `columns`, `fleet`             the same for many topics at once, over columns
"""
