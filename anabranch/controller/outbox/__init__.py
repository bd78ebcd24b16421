"""Pending announcements for Kafka.

`announcements` builds them, `entries` stores them in the commit of their change.
"""
