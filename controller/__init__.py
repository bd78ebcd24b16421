"""The scalable-topic controller of PIP-468: one node or several, REST as Pulsar 5, every change announced on Kafka.

A request goes app (HTTP) -> service (operations, at the topic's leader) -> store (one commit: the change and its
announcement) -> metadata (SQLite or ZooKeeper); the publisher of one node sends the announcements to Kafka in the order
of the commits. The executor is the usual caller; the streaming job is the usual listener. Layout arithmetic and policy
rules are those of `decisions`.
"""
