"""Background work of a node: `housekeeper` runs the loops, `failover` takes over and releases topics."""
