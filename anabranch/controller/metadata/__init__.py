"""Metadata store of PIP-468: a tree of small values, in SQLite for one node, on ZooKeeper for several.

`base` is the interface and its guarantees, `sqlite` and `zookeeper` implement it. `store_paths` defines the paths and
`records` the values. `factory` opens the store named by the settings, `upgrade` migrates older databases, and
`store_copy` copies one store into another. The other modules support the two stores.
"""
