"""Towards Kafka: what every long-lived client of ours needs, whichever part it is in.

- `producer`   a producer that goes on after a fatal error
"""
