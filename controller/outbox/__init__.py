"""What is still to be announced on Kafka: `announcements` makes it, `entries` stores it in the commit of its change."""
