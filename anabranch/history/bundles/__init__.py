"""Explanation of moves and splits of bundles, and of brokers left as they are, from the lake.

- `record`    recorded decisions about a bundle; a cluster's cycles run again, from its events
- `history`   usage of brokers and moves of bundles over time; `picture`, that drawn
"""
