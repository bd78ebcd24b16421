"""Delivery of announcements to Kafka.

`publisher` sends the outbox in order, `snapshots` periodically repeats the current state.
"""
