"""Parts that several processes share: Kafka producer, HTTP listener, metrics and probes, Java."""
