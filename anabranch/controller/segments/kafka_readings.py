"""Readings of the cluster that stores segments: topics, ends, consumer groups, sizes of messages.

Reads of all segments at once; nothing is changed. All requests raise `KafkaException`. Kafka's client has no request
for the sizes of logs, so the size of a segment's messages is measured on its newest ones.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from anabranch.controller.segments.kafka_admin import UNREACHABLE, KafkaAdmin, code_of
from anabranch.controller.segments.kafka_groups import SOON_BACK, CommittedOffsets
from anabranch.controller.segments.kafka_names import segment_of
from anabranch.controller.segments.kafka_positions import PARTITION
from decisions.topic.names import parse_segment_topic_name
from schemas.kafka.connection import KafkaConnection

TIMEOUT_SECONDS = 5.0
"""Longest wait for an answer of the brokers."""
MEASURED_MESSAGES = 50
"""Newest messages of a segment whose sizes are measured."""
MEASURED_BYTES = 65_536
"""Limit on what is fetched of a segment for it; a larger batch comes as a whole."""
MEASURE_SECONDS = 2.0
"""Longest wait for these messages."""


class KafkaSegment(NamedTuple):
    """A segment's Kafka topic."""

    topic: str
    """Scalable topic."""
    created_at: int | None
    """Its incarnation."""
    id: int
    kafka_topic: str
    leader: str
    """Broker that leads it, `host:port`; empty: none at present."""


class ClusterReading(NamedTuple):
    """What the brokers' metadata shows."""

    brokers: list[str]
    segments: list[KafkaSegment]


class SegmentReadings:
    """Reader of one cluster; for one thread."""

    def __init__(self, connection: KafkaConnection, cached_groups: int = 1, timeout: float = TIMEOUT_SECONDS) -> None:
        """`cached_groups`: clients kept for positions, one per group; `timeout`: of one answer, seconds."""
        self._kafka = KafkaAdmin(connection, timeout)
        self._committed = CommittedOffsets(connection, timeout, cached_groups)
        self._measuring = Consumer(
            connection.librdkafka(
                {
                    "client.id": "anabranch-collect-size",
                    "group.id": "anabranch-collect",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "fetch.message.max.bytes": MEASURED_BYTES,
                    "fetch.wait.max.ms": 50,
                    "log_level": 0,
                    **SOON_BACK,
                }
            )
        )

    def cluster(self) -> ClusterReading:
        """Return the live brokers and all topics that are segments."""
        with self._asking() as admin:
            metadata = self._kafka.known(admin.list_topics(timeout=self._kafka.timeout))
        addresses = {id: _address(str(broker.host), broker.port) for id, broker in metadata.brokers.items()}
        segments = []
        for name, topic in metadata.topics.items():
            try:
                segment, created_at = segment_of(name)
            except ValueError:
                continue
            parent, descriptor = parse_segment_topic_name(segment)
            partition = topic.partitions.get(PARTITION)
            leader = addresses.get(partition.leader, "") if partition is not None else ""
            segments.append(KafkaSegment(parent, created_at, descriptor.segment_id, name, leader))
        return ClusterReading(sorted(addresses.values()), segments)

    def ends(self, kafka_topics: Iterable[str]) -> dict[str, int | str]:
        """Return the end of each topic, or why it is not known."""
        wanted = {TopicPartition(name, PARTITION): OffsetSpec.latest() for name in kafka_topics}  # type: ignore[no-untyped-call]
        ends: dict[str, int | str] = {}
        with self._asking() as admin:
            for partition, future in admin.list_offsets(wanted, **self._kafka.limit).items():
                try:
                    ends[partition.topic] = self._kafka.answer(future).offset
                except KafkaException as error:
                    ends[partition.topic] = error.args[0].str()
        if ends and not any(isinstance(end, int) for end in ends.values()):
            self._kafka.had_no_answer(admin)
        return ends

    def groups(self) -> list[tuple[str, str]]:
        """Return Kafka topic and subscription of each group that may hold a segment's position."""
        with self._asking():
            groups = self._kafka.groups()
        parts = (group.partition("#") for group in groups)
        return [(kafka_topic, subscription) for kafka_topic, separator, subscription in parts if separator]

    def position(self, kafka_topic: str, subscription: str) -> int | None:
        """Return the committed position of a subscription; None if it has none."""
        group = f"{kafka_topic}#{subscription}"
        try:
            return self._committed.of([group], kafka_topic, PARTITION).get(group)
        except KafkaException as error:
            if code_of(error) in UNREACHABLE:
                self._committed.forget()
            raise

    def message_sizes(self, ends: Mapping[str, int]) -> dict[str, float]:
        """Return the mean size (key and value, bytes) of the newest messages before these ends."""
        starts = [TopicPartition(name, PARTITION, max(end - MEASURED_MESSAGES, 0)) for name, end in ends.items()]
        counts, sizes = Counter[str](), Counter[str]()
        waiting, deadline = set(ends), time.monotonic() + MEASURE_SECONDS
        self._measuring.assign(starts)
        try:
            while waiting and (left := deadline - time.monotonic()) > 0:
                for message in self._measuring.consume(1_000, min(left, 0.2)):
                    name = message.topic() or ""
                    if message.error() is not None:
                        waiting.discard(name)
                    elif name in ends:
                        counts[name] += 1
                        sizes[name] += _size(message)
                        if (message.offset() or 0) + 1 >= ends[name]:
                            waiting.discard(name)
        finally:
            self._measuring.unassign()
        return {name: sizes[name] / count for name, count in counts.items()}

    def close(self) -> None:
        """Drop the cached clients."""
        self._committed.forget()

    @contextmanager
    def _asking(self) -> Iterator[AdminClient]:
        used = self._kafka.admin
        try:
            yield used
        except KafkaException as error:
            if code_of(error) in UNREACHABLE:
                self._kafka.had_no_answer(used)
            raise


def _size(message: Message) -> int:
    return len(message.key() or b"") + len(message.value() or b"")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
