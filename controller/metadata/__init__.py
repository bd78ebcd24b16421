"""The metadata store of PIP-468: one interface (`base`), for one node on SQLite, for several on ZooKeeper."""
