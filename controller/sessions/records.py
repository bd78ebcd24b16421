"""What of a subscription outlives its leader, and what a consumer is told (PIP-468 "Metadata Store Paths").

Stage: beside `controller.sessions.coordinator`; JSON on both sides. A `SubscriptionRecord` is stored at
`…/subscriptions/{subscription}` and a `ConsumerRegistration` at `…/consumers/{consumerName}` below it, so that a
consumer that comes or goes costs one small write. Connections and grace periods are not stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from controller.sessions.coordinator import Push, SubscriptionCoordinator
from decisions.topic.layout import SegmentLayout, segment_topic
from schemas.base import Epoch, Name, SegmentId, TopicName, Wire
from schemas.messages import SubscriptionType
from schemas.metadata import MAX_SEGMENTS_IN_METADATA, HashRange


class SubscriptionRecord(Wire):
    """A subscription without its consumers. Pulsar 5 stores no drained ids and polls again after a failover."""

    type: SubscriptionType
    drained: Annotated[tuple[SegmentId, ...], Field(max_length=MAX_SEGMENTS_IN_METADATA)] = ()
    """Ids of the sealed segments in the layout that it has read to the end, ascending."""

    @classmethod
    def of(cls, coordinator: SubscriptionCoordinator) -> SubscriptionRecord:
        """The record of a coordinator as it is now."""
        return cls(type=coordinator.type, drained=tuple(sorted(coordinator.drained)))


class ConsumerRegistration(Wire):
    """A session. As in Pulsar 5 without its segments: they follow from names, layout and drained ids."""

    consumer_name: Name
    session: bool = True
    """False: registered by REST, it needs no connection and stays until it is unregistered."""


class AssignedSegment(Wire):
    """A segment to read from (PIP-468 "ConsumerRegistration and ConsumerAssignment")."""

    segment_id: SegmentId
    hash_range: HashRange
    underlying_topic_name: str
    """The `segment://` topic, or the old partition that a migrated topic wraps."""


class ConsumerAssignment(Wire):
    """All segments of one consumer; it replaces whatever the consumer was told before."""

    layout_epoch: Epoch
    assigned_segments: tuple[AssignedSegment, ...]

    @classmethod
    def of(cls, topic: TopicName, push: Push) -> ConsumerAssignment:
        """The message of a push."""
        segments = tuple(
            AssignedSegment(
                segment_id=segment.segment_id,
                hash_range=HashRange(start=segment.start, end=segment.end),
                underlying_topic_name=segment.legacy_topic_name or segment_topic(topic, segment),
            )
            for segment in push.segments
        )
        return cls(layout_epoch=push.epoch, assigned_segments=segments)


def registrations(coordinator: SubscriptionCoordinator) -> list[ConsumerRegistration]:
    """The sessions of a coordinator, by name."""
    return [ConsumerRegistration(consumer_name=name) for name in sorted(coordinator.sessions)]


def restore(
    name: str,
    record: SubscriptionRecord,
    consumers: Iterable[ConsumerRegistration],
    layout: SegmentLayout,
    grace_ms: int,
    now_ms: int,
) -> SubscriptionCoordinator:
    """The coordinator of a new leader at `now_ms`: everybody away, with a whole grace period (PIP-468 "failover").

    `layout` may be newer than the record; drained segments that are gone from it, or are none, are left out.
    """
    empty = SubscriptionCoordinator(name, record.type, grace_ms, layout)
    drained, _ = empty.drain(record.drained)
    return drained.fresh_grace((consumer.consumer_name for consumer in consumers), now_ms)
