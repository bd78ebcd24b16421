"""Decisions over time, pure: a bucket's state and records in, new state and output out; bytes and arrays only.

- `kernel`              what all families share: one batch of one bucket, ticks, counts, stored parts, output
- `autoscale`           the family of PIP-483: its stages (parse, filter, store, count, record), its evaluation
- `families`            which families run: the one place that names them
- `history`, `replay`   a bucket's state out of what the lake has on record
"""
