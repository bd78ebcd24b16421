"""Clients for scalable topics on Kafka: segments are Kafka topics, a controller splits and merges them.

Stage: outside the product; imports none of its packages. `controller` follows layouts, `producer` writes.
"""
