"""Kafka topics, connection and messages."""
