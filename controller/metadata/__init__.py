"""The metadata store of PIP-468: a tree of small values, on one node in SQLite, for several on ZooKeeper.

`base` is the interface and its promises, `sqlite` and `zookeeper` keep them. `store_paths` says where everything is
and `records` what is there. `factory` opens the store that the settings name, `upgrade` brings older databases up, and
`store_copy` copies one store into another. The rest serves the two stores.
"""
