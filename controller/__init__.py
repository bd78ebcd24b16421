"""The scalable-topic controller of PIP-468: layouts in SQLite, REST as Pulsar 5, every change announced on Kafka.

A request goes app (HTTP) -> service (operations) -> store (one transaction: the change and its announcement) and the
publisher sends the announcements to Kafka in the order of the transactions. The executor is the usual caller; the
streaming job is the usual listener. Layout arithmetic and policy rules are those of `decisions`.
"""
