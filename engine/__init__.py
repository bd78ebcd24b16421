"""Pure decisions over time: a bucket's state and records in, its new state and output out.

Inputs and outputs are bytes and arrays; nothing here does I/O.

- `kernel`              what all families share: one batch of one bucket, ticks, counts, stored parts, output
- `autoscale`           the family of PIP-483: its stages (parse, filter, store, count, record), its evaluation
- `bundles`             the family of a Pulsar cluster's bundles: cluster state, one cycle per tick
- `families`            the list of families that run
- `history`, `replay`   rebuild a bucket's state from the records in the lake; `cluster_replay`, that of clusters
- `agreement`           recorded answers compared with those of a replayed state
"""
