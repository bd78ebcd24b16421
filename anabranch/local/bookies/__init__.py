"""Real BookKeeper clusters on loopback, and ledgers to put into them."""
