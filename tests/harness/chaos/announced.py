"""Readers of the announcements in a chaos run: from the outbox, or from Kafka if there is one.

Stage: under `tests.harness.chaos.run`. Without Kafka this empties the outbox, so that it stays small.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition

from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import Delete, MetadataStore
from anabranch.controller.outbox.entries import StoredOutbox
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, Rejected, parse_message
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS
from tests.harness.chaos.clients import LIFE
from tests.harness.chaos.history import AnnouncedCount, AnnouncedLayout

NAMESPACE = "acme/chaos"
"""Of the topics of a run."""
TOPICS = f"topic://{NAMESPACE}/".encode()
Announced = AnnouncedLayout | AnnouncedCount
_AT_ONCE = 200
WAIT_S = 60.0
"""Longest time until the outbox is empty when nothing changes any more."""


class Announcements(Protocol):
    """Source of announcements."""

    repeats: bool
    """Whether an announcement may come twice."""

    def read(self) -> list[Announced]:
        """All since the last call, in order, once nothing changes any more. Raises `TimeoutError`."""

    def close(self) -> None:
        """Stop reading."""


class FromOutbox:
    """Those that wait in the outbox for a Kafka that is not there."""

    repeats = False

    def __init__(self, nodes: MetadataStore) -> None:
        self._nodes, self._outbox = nodes, StoredOutbox(nodes)

    def read(self) -> list[Announced]:
        """See `Announcements`; what was read is deleted."""
        found: list[Announced] = []
        names = self._outbox.names()
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            records = [record for entry in self._outbox.read(some) for record in entry.records]
            found += announced((record.source, record.key.encode(), record.value) for record in records)
            self._nodes.commit(*(Delete(f"{store_paths.OUTBOX}/{name}") for name in some))
        return found

    def close(self) -> None:
        """See `Announcements`."""


class FromKafka:
    """Announcements that have reached Kafka.

    Late messages of a replaced sender are dropped, as listeners drop them.
    """

    repeats = True

    def __init__(self, nodes: MetadataStore, bootstrap: str) -> None:
        self._outbox = StoredOutbox(nodes)
        self._senders: dict[bytes, int] = {}
        self._partitions = [
            TopicPartition(topic.name, partition, 0)
            for topic in (CONTROL_EVENTS, CONSUMER_EVENTS)
            for partition in range(topic.partitions)
        ]
        self._consumer = Consumer(
            KafkaConnection(bootstrap).librdkafka({"group.id": "chaos", "enable.auto.commit": False, "log_level": 0})
        )
        self._consumer.assign(self._partitions)

    def read(self) -> list[Announced]:
        """See `Announcements`."""
        deadline = time.monotonic() + WAIT_S
        while self._outbox.names():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the outbox is not empty after {WAIT_S:.0f} s")
            time.sleep(0.1)
        ends = {(one.topic, one.partition): self._end(one) for one in self._partitions}
        found: list[Announced] = []
        while any(
            max(0, one.offset) < ends[one.topic, one.partition] for one in self._consumer.position(self._partitions)
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka does not give what it has in {WAIT_S:.0f} s")
            records = [one for one in self._consumer.consume(1000, 0.2) if one.error() is None]
            found += announced(((one.topic(), one.key(), one.value()) for one in records), self._senders)
        return found

    def close(self) -> None:
        """See `Announcements`."""
        self._consumer.close()

    def _end(self, partition: TopicPartition) -> int:
        _, end = self._consumer.get_watermark_offsets(partition, timeout=10)
        return int(end)


def announced(
    records: Iterable[tuple[str, bytes | None, bytes]], senders: dict[bytes, int] | None = None
) -> Iterator[Announced]:
    """Yield the announcements about this run's topics in records of Kafka or of the outbox.

    Other programs may use the same Kafka.

    `senders`: the newest sender of each subject, kept up to date; late messages of older ones are left out.
    """
    for source, key, value in records:
        if not (key or b"").startswith(TOPICS):
            continue
        message = parse_message(source, key, value)  # type: ignore[arg-type]
        assert not isinstance(message, Rejected), message
        if not isinstance(message, (LayoutEvent, ConsumerEvent)):
            continue
        if senders is not None:
            subject = source.encode() + key
            if (message.sender or 0) < senders.get(subject, 0):
                continue
            senders[subject] = message.sender or 0
        if isinstance(message, LayoutEvent) and message.cause != "snapshot":
            life = int(message.layout.properties[LIFE])
            yield AnnouncedLayout(
                message.topic, message.layout.epoch, message.cause, len(message.layout.segments), life
            )
        elif isinstance(message, ConsumerEvent) and (senders is not None or message.event != "snapshot"):
            deleted = message.event == "deleted"
            yield AnnouncedCount(message.topic, message.subscription, message.consumers, deleted)
