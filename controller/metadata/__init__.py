"""The metadata store of PIP-468: one interface (`base`), one node on SQLite (`sqlite`), several on ZooKeeper (`zookeeper`)."""
