"""A real Pulsar 5 on this machine, and programs of ours that use its own classes."""
