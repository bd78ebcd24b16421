"""Explanation of a topic's action or hold at an instant, and the changes that would alter it.

- `record`   the topic's record, replayed up to that instant, and decided again
- `application`  progress of a decision at the executor
- `changes`  the smallest change of each single input that leads to another answer, and the search for it
- `inputs`   the inputs that a change may touch, and the snapshot after it
- `slowness`  slow segments in words and figures
"""
