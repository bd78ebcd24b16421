"""Kafka producer for every long-lived client.

- `producer`   a producer that survives fatal errors
"""
