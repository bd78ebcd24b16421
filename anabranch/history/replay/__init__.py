"""Replay of every recorded decision and hold by this release, from the inputs of that time.

- `again`   answers of this release at each recorded evaluation
- `report`  comparison of those answers with the record, and clusters' cycles run again
"""
