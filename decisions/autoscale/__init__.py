"""Rules for splits and merges (PIP-483). In the order in which a topic meets them:

- `policy`                       the knobs, their profiles, their resolution, their rules
- `rates`, `significance`        a segment's load against the thresholds; which sample becomes a load record
- `snapshot`                     what one evaluation sees
- `gates`                        every reason for holding, and which of them binds
- `clocks`, `past`               what a layout, a sample, an outcome or a changed policy does to what is remembered;
                                 what made each segment, and how deep its merges are
- `answers`, `decide`            what is answered, and the order of the passes
- `split_pass`, `merge_pass`     the two passes; `rebucket_pass` before them, `known` and `hot_keys` under them
- `columns`, `fleet`             the same for many topics at once, over columns; `fleet_readings` for their holds
- `slowness`                     why a topic is slow, for explanations only
"""
