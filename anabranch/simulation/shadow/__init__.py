"""Comparison with another scaler: both watch the same topics, and only the other one acts.

Stage: the read end, over a lake that was filled while `anabranch serve executor` was in mode `observe`. Each module may
import only those above it:

- `sides`    the actions of each side, and their pairs: values, and the rules that pair them
- `own`      recorded actions that are our own
- `record`   both sides from the lake: actual actions from layouts, wanted ones from decisions (`engine.replay`)
- `report`   the comparison in numbers
- `picture`  the same as a page with a chart
"""
