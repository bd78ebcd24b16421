"""One leader for every topic (PIP-468 "Leader Election and Failover").

`election` is one candidate for one path, `leaders` the topics that this node leads, each for a `Term`, and
`node_registry` the address that a node holds as long as it is alive.
"""
