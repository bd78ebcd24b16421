"""What another scaler did, beside what we would have done: both watch the same topics, and only the other one acts.

Stage: the read end, over a lake that was filled while `anabranch executor` was in mode `observe`. Each module may
import only those above it:

- `sides`    the actions of each side, and pairs of the same one: values, and the rules that pair them
- `own`      which of the actions on record are our own
- `record`   both sides out of the lake: layouts say what was done, decisions what we wanted (`engine.replay`)
- `report`   the comparison in numbers
- `picture`  the same as a page with a chart
"""
