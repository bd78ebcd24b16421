"""Decisions over time, pure: a bucket's state and records in, new state and output out; bytes and arrays only.

- `packing`     before the shuffle: raw rows in, a few packed rows per bucket out
- `bucket`      one batch of one bucket; `records` is what goes in and out, `packed` what is stored
- `autoscale`   the state, filter and evaluation of PIP-483
- `history`, `replay`   a bucket's state out of what the lake has on record
"""
