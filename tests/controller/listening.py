"""Reading back from Kafka what a controller announced."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from schemas.kafka.messages import ConsumerEvent, LayoutEvent, Message, Rejected, parse_message
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS
from tests.waiting import wait_until


class Listener:
    """All announcements about the topics whose name begins with `prefix`, in the order of Kafka."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._prefix = prefix
        self.messages: list[Message] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        )
        self._consumer.assign(
            [
                TopicPartition(topic.name, partition, 0)
                for topic in (CONTROL_EVENTS, CONSUMER_EVENTS)
                for partition in range(topic.partitions)
            ]
        )

    def close(self) -> None:
        self._consumer.close()

    def read_until(self, condition: Callable[[], object], deadline_s: float = 20) -> None:
        """Read on until the messages so far fulfil `condition`."""

        def fulfilled() -> bool:
            for record in self._consumer.consume(1000, 0.02):
                assert record.error() is None
                message = parse_message(record.topic(), record.key(), record.value())
                assert not isinstance(message, Rejected)
                if (getattr(message, "topic", None) or "").startswith(self._prefix):
                    self.messages.append(message)
            return bool(condition())

        wait_until(fulfilled, deadline_s)

    def layouts(self, topic: str) -> list[LayoutEvent]:
        """The layout events of one topic, snapshots too."""
        return [event for event in self.messages if isinstance(event, LayoutEvent) and event.topic == topic]

    def sessions(self, topic: str) -> list[ConsumerEvent]:
        """The consumer events of one topic, snapshots too."""
        return [event for event in self.messages if isinstance(event, ConsumerEvent) and event.topic == topic]

    def epoch(self, topic: str) -> int:
        """The newest epoch that was announced, -1 for none."""
        return max((event.layout.epoch for event in self.layouts(topic)), default=-1)
