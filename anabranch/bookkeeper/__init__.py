"""Switch of a broker cluster to another BookKeeper cluster: access to ledgers and Pulsar's metadata."""
