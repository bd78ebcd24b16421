"""Definitions of the Kafka topics (design "Kafka messages"): names, partitions, settings.

Created by `anabranch.local.broker` locally, and by an operator on other clusters. Records are keyed by the scalable
topic's name, so a topic's messages keep their order; samples in columns by their reporter's. Those of the family
`bundles` are keyed by the cluster, and are needed only where that family is enabled.
"""

from dataclasses import dataclass, field

from schemas.kafka.messages import MAX_VALUE_BYTES

REPLICAS = 3
"""Replicas of a topic, where there are as many brokers."""


@dataclass(frozen=True)
class KafkaTopic:
    """A Kafka topic: logical name, number of partitions, broker-side settings."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)

    def config_of(self, replicas: int) -> dict[str, str]:
        """Return its settings with some replicas: of three, two must have a write, so that it outlives a broker."""
        return {**self.config, "min.insync.replicas": "2" if replicas >= REPLICAS else "1"}


TIMESTAMP_TYPE = "LogAppendTime"
"""Timestamp type: the broker's time of acceptance.

With `CreateTime` the producer's clock would date records, and nothing could reveal a wrong clock.
"""
_COMMON = {
    "cleanup.policy": "delete",
    "max.message.bytes": str(MAX_VALUE_BYTES + 65_536),
    "message.timestamp.type": TIMESTAMP_TYPE,
}
_DAY_MS = 86_400_000

SEGMENT_STATS = KafkaTopic("segment-stats", 4, {**_COMMON, "retention.ms": str(_DAY_MS)})
CONSUMER_EVENTS = KafkaTopic("consumer-events", 2, {**_COMMON, "retention.ms": str(7 * _DAY_MS)})
CONTROL_EVENTS = KafkaTopic("control-events", 2, {**_COMMON, "retention.ms": str(7 * _DAY_MS)})

KAFKA_TOPICS = (SEGMENT_STATS, CONSUMER_EVENTS, CONTROL_EVENTS)
"""Topics that every job needs."""

BROKER_LOAD = KafkaTopic("broker-load", 2, {**_COMMON, "retention.ms": str(_DAY_MS)})
BROKER_EVENTS = KafkaTopic("broker-events", 1, {**_COMMON, "retention.ms": str(7 * _DAY_MS)})
BUNDLE_TOPICS = (BROKER_LOAD, BROKER_EVENTS)
"""Topics of the family `bundles`; their messages: `schemas.kafka.broker_messages`."""
