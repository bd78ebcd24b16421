"""One leader for every topic (PIP-468 "Leader Election and Failover").

`election` is one candidate for one path, `leaders` holds the topics that this node leads, each for a `Term`, and
`node_registry` holds the address of a live node.
"""
