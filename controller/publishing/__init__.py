"""Announcements to Kafka: `publisher` sends the outbox in order, `snapshots` repeats the present state now and then."""
