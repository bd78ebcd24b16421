"""Check and seal a plain Kafka topic, so that a scalable topic can adopt its partitions.

`inspect` changes nothing. `seal` refuses all further writes, as for segments, and ends the topic's retention; both can
be repeated. All requests raise `SegmentStoreError`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from anabranch.controller.segments.kafka import SEALED, SETTLE_SECONDS, TIMEOUT_SECONDS, is_sealed
from anabranch.controller.segments.kafka_admin import NO_TOPIC, KafkaAdmin
from anabranch.controller.segments.kafka_groups import end_readers
from anabranch.controller.segments.kafka_names import SEGMENT_PREFIX, KafkaPartition
from anabranch.controller.segments.kafka_probe import PartitionProbe
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import BUNDLE_TOPICS, KAFKA_TOPICS

QUIET_SECONDS = 2.0
"""Time in which no message may arrive before the topic is sealed."""
PROBE_BYTES = 4_096
"""More than the overhead of a batch of one message."""
MAX_PROBED_BYTES = 20_000_000
"""Larger probes may take too long."""
_PROBED = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "3600000"}
_KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
_OWN_TOPICS = frozenset(topic.name for topic in (*KAFKA_TOPICS, *BUNDLE_TOPICS))
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass
class PlainTopic:
    """A topic as it was inspected."""

    name: str
    firsts: list[int] = field(default_factory=list)
    """Offset of the oldest message of each partition."""
    ends: list[int] = field(default_factory=list)
    is_sealed: bool = False
    positions: dict[str, list[int]] = field(default_factory=dict)
    """Positions by consumer group, one for each partition."""
    problems: list[str] = field(default_factory=list)
    """Sentences that say why it cannot be adopted now."""


class TopicAdoption:
    """Adoption of one topic."""

    def __init__(self, connection: KafkaConnection, name: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Connects at the first use."""
        self._kafka, self._name = KafkaAdmin(connection, timeout_seconds), name

    def inspect(self) -> PlainTopic:
        """Read partitions, settings and consumer groups; takes as long as the topic has to be quiet."""
        topic = PlainTopic(self._name)
        if self._name.startswith((SEGMENT_PREFIX, "__")) or self._name in _OWN_TOPICS:
            topic.problems.append(f"{self._name} is not an application's topic")
            return topic
        with self._kafka.to(f"inspect {self._name}"):
            listed = self._kafka.known(self._kafka.admin.list_topics(self._name, timeout=self._kafka.timeout))
            metadata = listed.topics.get(self._name)
            if metadata is None or (metadata.error is not None and metadata.error.code() in NO_TOPIC):
                topic.problems.append(f"{self._name} is not in {self._kafka.where}")
                return topic
            if metadata.error is not None:
                raise KafkaException(metadata.error)
            numbers = sorted(metadata.partitions)
            self._read_settings(topic)
            self._read_offsets(topic, numbers)
            self._read_groups(topic, numbers)
        return topic

    def seal(self, partitions: int) -> None:
        """Return when no partition takes messages any more, and none will expire."""
        with self._kafka.to(f"seal {self._name}"):
            before = self._kafka.settings(self._name)
            if not is_sealed(before):
                self._refuse_probes(partitions, int(before["max.message.bytes"]))
            self._kafka.change_settings(self._name, {**SEALED, **_KEPT})
            for number in range(partitions):
                self._await_probe(PartitionProbe(self._kafka, KafkaPartition(self._name, number)), True)

    def _refuse_probes(self, partitions: int, max_bytes: int) -> None:
        """Return when every leader refuses the time stamp of a probe; a plain topic may allow it.

        A leader with the old settings refuses these probes too, for their size: they become messages nowhere.
        """
        self._kafka.change_settings(self._name, {**_PROBED, "max.message.bytes": str(max_bytes + 2 * PROBE_BYTES)})
        for number in range(partitions):
            partition = KafkaPartition(self._name, number)
            self._await_probe(PartitionProbe(self._kafka, partition, max_bytes + PROBE_BYTES), False)

    def _await_probe(self, probe: PartitionProbe, refused: bool) -> None:
        self._kafka.until(lambda: self._kafka.again(probe.is_refused) is refused)

    def _read_settings(self, topic: PlainTopic) -> None:
        settings = self._kafka.settings(self._name)
        topic.is_sealed = is_sealed(settings)
        if (policy := settings["cleanup.policy"]) != "delete":
            topic.problems.append(
                f"its cleanup.policy is {policy}: compaction would remove messages of sealed segments"
            )
        if int(settings["max.message.bytes"]) > MAX_PROBED_BYTES:
            topic.problems.append(f"its max.message.bytes is above {MAX_PROBED_BYTES}: lower it first")

    def _read_offsets(self, topic: PlainTopic, numbers: Sequence[int]) -> None:
        topic.firsts, before = self._offsets(numbers, _EARLIEST), self._offsets(numbers, _LATEST)
        wait_quietly(SETTLE_SECONDS if topic.is_sealed else QUIET_SECONDS)
        topic.ends = self._offsets(numbers, _LATEST)
        if topic.ends != before:
            topic.problems.append("producers write to it: stop them, or give them the scalable topic first")
        if self._offsets(numbers, _LATEST, IsolationLevel.READ_COMMITTED) != topic.ends:
            topic.problems.append("it has open transactions: end them")

    def _offsets(
        self, numbers: Sequence[int], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> list[int]:
        asked = {TopicPartition(self._name, number): spec for number in numbers}

        def ask() -> dict[int, int]:
            listed = self._kafka.admin.list_offsets(asked, isolation_level=isolation, **self._kafka.limit)
            return {partition.partition: self._kafka.answer(future).offset for partition, future in listed.items()}

        offsets = self._kafka.again(ask)
        return [offsets[number] for number in numbers]

    def _read_groups(self, topic: PlainTopic, numbers: Sequence[int]) -> None:
        for group in sorted(self._kafka.groups()):
            if group.startswith(SEGMENT_PREFIX):
                continue
            committed = self._committed(group, numbers)
            if any(position is not None for position in committed):
                self._add_group(topic, group, committed)

    def _committed(self, group: str, numbers: Sequence[int]) -> list[int | None]:
        """Return a group's positions; None where it has none. Its client does not outlive the question."""
        options = {"client.id": "anabranch-adopt", "group.id": group, "enable.auto.commit": False, "log_level": 0}
        consumer = Consumer(self._kafka.connection.librdkafka(options))
        try:
            answers = consumer.committed(
                [TopicPartition(self._name, number) for number in numbers], self._kafka.timeout
            )
        except KafkaException:
            end_readers([consumer])
            raise
        consumer.close()
        for error in (answer.error for answer in answers):
            if error is not None:
                raise KafkaException(error)
        return [answer.offset if answer.offset >= 0 else None for answer in answers]

    def _add_group(self, topic: PlainTopic, group: str, committed: Sequence[int | None]) -> None:
        """Add a group that has a position somewhere; one without messages to read is at the end."""
        (description,) = self._kafka.answers(self._kafka.admin.describe_consumer_groups([group], **self._kafka.limit))
        if description.members:
            topic.problems.append(f"the group {group} has consumers: stop them")
        positions = []
        for number, (position, first, end) in enumerate(zip(committed, topic.firsts, topic.ends, strict=True)):
            if (position is None and first < end) or (position or 0) > end:
                topic.problems.append(
                    f"the group {group} has no position in partition {number}: set it with kafka-consumer-groups"
                )
            positions.append(end if position is None else max(position, first))
        topic.positions[group] = positions


def wait_quietly(seconds: float) -> None:
    """Wait for messages that may still come."""
    time.sleep(seconds)
