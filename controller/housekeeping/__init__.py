"""What a node does without being asked: `housekeeper` runs the loops, `failover` takes over and releases topics."""
