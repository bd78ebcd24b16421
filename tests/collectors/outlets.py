"""Where a collector's records go in tests: a list, and what a listener makes of them."""

from __future__ import annotations

from anabranch.collectors.announcements import KafkaRecord
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.kafka.messages import (
    ConsumerEvent,
    DeliveryEvent,
    LayoutEvent,
    LayoutsKnown,
    PolicyEvent,
    Rejected,
    SegmentStatsColumns,
    parse_message,
)


def parsed(record: KafkaRecord):
    """The message in a record, which must not become a dead letter."""
    message = parse_message(record.source, record.key.encode(), record.value)
    assert not isinstance(message, Rejected), message
    return message


class Listed:
    """Takes every record, and believes it as the job does."""

    def __init__(self) -> None:
        self.waiting = self.samples_waiting = self.lost = self.sent = 0
        self.trouble = None
        self.has_room = True
        self.records: list[KafkaRecord] = []
        self.layouts: dict[str, LayoutEvent] = {}
        self.consumers: dict[str, dict[str, int]] = {}
        self.policies: dict[str, dict | None] = {}
        self.samples: list[SegmentStatsColumns] = []
        self.deliveries: dict[str, DeliveryEvent] = {}
        self.digests: dict[str, str] = {}
        self.repeated: list[str] = []
        """Topics whose layouts were repeated by the digests of those that were announced."""
        self.deleted: list[str] = []
        self.causes: list[str] = []

    def announce(self, record: KafkaRecord) -> None:
        self.sent += 1
        self.records.append(record)
        message = parsed(record)
        if isinstance(message, LayoutEvent):
            self.causes.append(message.cause)
            if message.cause == "deleted":
                self.deleted.append(message.topic)
                self.layouts.pop(message.topic, None)
                self.consumers.pop(message.topic, None)
            else:
                self.layouts[message.topic] = message
                self.digests[message.topic] = digest_of(layout_in(record.value))
        elif isinstance(message, LayoutsKnown):
            for topic, epoch, digest in zip(message.topics, message.epochs, message.digests, strict=True):
                assert (epoch, digest) == (self.layouts[topic].layout.epoch, self.digests[topic])
                self.repeated.append(topic)
        elif isinstance(message, ConsumerEvent):
            known = self.consumers.setdefault(message.topic, {})
            if message.event == "deleted":
                known.pop(message.subscription, None)
            else:
                known[message.subscription] = message.consumers
        elif isinstance(message, DeliveryEvent):
            self.deliveries[message.topic] = message
        elif isinstance(message, PolicyEvent):
            self.policies[message.name] = message.policy

    def report(self, record: KafkaRecord) -> None:
        self.records.append(record)
        self.samples.append(parsed(record))

    def poll(self) -> None:
        pass

    def rates(self) -> dict[tuple[str, int], tuple[float, float, float, float]]:
        """The newest rates of each segment that were sent."""
        found = {}
        for message in self.samples:
            segments = iter(zip(message.ids, *message.rates, strict=True))
            for topic, count in zip(message.topics, message.counts, strict=True):
                for _ in range(count):
                    id, *rates = next(segments)
                    found[topic, id] = tuple(rates)
        return found
