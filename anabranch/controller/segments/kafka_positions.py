"""Positions of a segment's subscriptions: the committed offsets of their consumer groups.

Stage: below `kafka`. A subscription exists when its group has a position in the segment; a group without one is being
created or deleted. All requests raise `KafkaException`.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from anabranch.controller.segments.base import Position
from anabranch.controller.segments.kafka_admin import (
    FOR_A_MOMENT,
    GROUP_HAS_MEMBERS,
    NO_GROUP,
    NO_TOPIC,
    KafkaAdmin,
    code_of,
)
from anabranch.controller.segments.kafka_names import KafkaPartition, group_id, kafka_topic, subscription_of
from decisions.topic.names import parse_segment_topic_name

PARTITION = 0
"""The only partition of a topic that was made for a segment."""
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Positions:
    """Positions of subscriptions in the segments of one incarnation of a topic."""

    def __init__(
        self, kafka: KafkaAdmin, life: int | None = None, adopted: Mapping[int, KafkaPartition] = MappingProxyType({})
    ) -> None:
        """`adopted`: partitions of plain topics by the id of the segment that they are."""
        self._kafka = kafka
        self._life, self._adopted = life, adopted

    def partition_of(self, segment: str) -> KafkaPartition:
        """Return the partition that holds a segment's messages."""
        adopted = self._adopted.get(parse_segment_topic_name(segment)[1].segment_id) if self._adopted else None
        return adopted or KafkaPartition(kafka_topic(segment, self._life), PARTITION)

    def bounds(self, segment: str) -> tuple[int, int]:
        """Return the first retained position, and the end."""
        return self._offset(segment, _EARLIEST), self._offset(segment, _LATEST)

    def named(self, segment: str) -> list[str]:
        """Return the subscriptions that have a group."""
        groups = self._kafka.again(self._kafka.groups)
        subscriptions = (subscription_of(group, segment, self._life) for group in groups)
        return sorted(subscription for subscription in subscriptions if subscription is not None)

    def of(self, segment: str, subscriptions: Iterable[str]) -> dict[str, int]:
        """Return the position of each of these subscriptions that exists."""
        names = list(subscriptions)
        return self._kafka.again(lambda: self._of(segment, names))

    def backlog(self, segment: str, subscriptions: Iterable[str]) -> dict[str, int]:
        """Return the messages between position and end, for each of these subscriptions that exists."""
        first, end = self.bounds(segment)
        return {name: max(end - max(position, first), 0) for name, position in self.of(segment, subscriptions).items()}

    def start(self, segment: str, subscriptions: Iterable[str], position: Position, patient: bool = False) -> None:
        """Set a position for those without one; `patient`: with brokers that have not learned of the topic.

        Groups with members get theirs from them.
        """
        names = list(subscriptions)
        existing = self.of(segment, names)
        if not (missing := [name for name in names if name not in existing]):
            return
        passing = FOR_A_MOMENT | NO_TOPIC if patient else FOR_A_MOMENT
        offset = self._kafka.again(
            lambda: self._offset(segment, _EARLIEST if position == "earliest" else _LATEST), passing
        )
        self._kafka.again(lambda: self._commit(segment, missing, offset, fine=GROUP_HAS_MEMBERS), passing)

    def set(self, segment: str, subscription: str, position: int) -> None:
        """Set a position, whatever it was."""
        self._kafka.again(lambda: self._commit(segment, [subscription], position))

    def move(self, segment: str, subscription: str, timestamp_ms: int | None) -> bool:
        """Move to the first message at or after a time; without such a message or a time, to the end.

        Returns False if the subscription does not exist.
        """
        if not self.of(segment, [subscription]):
            return False
        # Read the end first: a message written later is either found by its time or past this end.
        offset = self._offset(segment, _LATEST)
        if timestamp_ms is not None:
            later = self._offset(segment, OffsetSpec.for_timestamp(timestamp_ms))
            offset = later if later >= 0 else offset
        self._kafka.again(lambda: self._commit(segment, [subscription], offset))
        return True

    def has_members(self, segment: str, subscription: str) -> bool:
        """Return whether consumers have joined the group of a subscription; False if there is no such group."""
        group = group_id(segment, subscription, self._life)
        try:
            (description,) = self._kafka.again(
                lambda: self._kafka.answers(self._kafka.admin.describe_consumer_groups([group], **self._kafka.limit))
            )
        except KafkaException as error:
            if code_of(error) in NO_GROUP:
                return False
            raise
        return bool(description.members)

    def delete(self, segment: str, subscriptions: Iterable[str], passing: frozenset[int] = NO_GROUP) -> None:
        """Delete the groups; errors in `passing` are ignored."""
        for group in [group_id(segment, name, self._life) for name in subscriptions]:
            try:
                self._kafka.again(partial(self._delete, group))
            except KafkaException as error:
                if code_of(error) not in passing:
                    raise

    def has_open_transactions(self, segment: str) -> bool:
        """Return whether there are messages of an open transaction."""
        # Read the end first: concurrent ordinary writes also advance the committed end.
        end = self._offset(segment, _LATEST)
        return self._offset(segment, _LATEST, IsolationLevel.READ_COMMITTED) < end

    def _offset(
        self, segment: str, spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> int:
        partition = TopicPartition(*self.partition_of(segment))
        (listed,) = self._kafka.again(
            lambda: self._kafka.answers(
                self._kafka.admin.list_offsets({partition: spec}, isolation_level=isolation, **self._kafka.limit)
            )
        )
        return int(listed.offset)

    def _of(self, segment: str, names: list[str]) -> dict[str, int]:
        groups = {group_id(segment, name, self._life): name for name in names}
        positions = self._kafka.committed.of(groups, *self.partition_of(segment))
        return {groups[group]: position for group, position in positions.items()}

    def _commit(self, segment: str, names: list[str], offset: int, fine: frozenset[int] = frozenset()) -> None:
        start = TopicPartition(*self.partition_of(segment), offset)
        asked: list[dict[str, Future[ConsumerGroupTopicPartitions]]] = [
            self._kafka.admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group_id(segment, name, self._life), [start])], **self._kafka.limit
            )
            for name in names
        ]
        for futures in asked:
            try:
                _only(self._kafka.answers(futures))
            except KafkaException as error:
                if code_of(error) not in fine:
                    raise

    def _delete(self, group: str) -> None:
        self._kafka.answers(self._kafka.admin.delete_consumer_groups([group], **self._kafka.limit))


def _only(groups: list[ConsumerGroupTopicPartitions]) -> TopicPartition:
    """Return the one partition of the one group requested; raise its error."""
    position = (groups[0].topic_partitions or [])[0]
    if position.error is not None:
        raise KafkaException(position.error)
    return position
