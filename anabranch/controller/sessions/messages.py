"""Messages to consumers: assignments (PIP-468 "ConsumerRegistration and ConsumerAssignment")."""

from typing import Annotated

from pydantic import Field

from anabranch.controller.sessions.coordinator import Link, Push, SubscriptionCoordinator
from decisions.topic.segment import segment_topic
from schemas.base import Count, Epoch, Millis, SegmentId, TopicName, Wire
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import HashRange

MAX_SHOWN = 1_000
"""Maximum number of consumers listed in a response."""


class AssignedSegment(Wire):
    """A segment to read from (PIP-468 "ConsumerRegistration and ConsumerAssignment")."""

    segment_id: SegmentId
    hash_range: HashRange
    underlying_topic_name: str
    """The `segment://` topic, or the old partition that a migrated topic wraps."""


class ConsumerAssignment(Wire):
    """All segments of one consumer; it replaces any earlier assignment."""

    layout_epoch: Epoch
    assigned_segments: tuple[AssignedSegment, ...]
    topic_created_at: Annotated[Millis | None, Field(exclude_if=lambda value: value is None)] = None
    """Incarnation of the topic: part of the names of its segments in Kafka. Not in the PIP."""

    @classmethod
    def of(cls, topic: TopicName, push: Push) -> "ConsumerAssignment":
        """Build the message of a push."""
        segments = tuple(
            AssignedSegment(
                segment_id=segment.segment_id,
                hash_range=HashRange(start=segment.start, end=segment.end),
                underlying_topic_name=segment.legacy_topic_name or segment_topic(topic, segment),
            )
            for segment in push.segments
        )
        return cls(layout_epoch=push.epoch, assigned_segments=segments, topic_created_at=push.topic_created_at)


class HeldSegments(Wire):
    """Segments that a consumer of a subscription reads."""

    consumer: str
    is_connected: bool
    """If false, it keeps its segments for its grace period."""
    segments: tuple[SegmentId, ...]


class SubscriptionConsumers(Wire):
    """All consumers of a subscription, by name; not in the PIP."""

    type: SubscriptionType
    layout_epoch: Epoch
    count: Count
    """Total number; at most `MAX_SHOWN` are in `consumers`, those with segments first."""
    consumers: tuple[HeldSegments, ...]

    @classmethod
    def of(cls, coordinator: SubscriptionCoordinator) -> "SubscriptionConsumers":
        """Build the list from the current state of the subscription."""
        assigned = coordinator.assignment
        names = sorted(coordinator.sessions, key=lambda name: (not assigned.get(name), name))
        shown = tuple(
            HeldSegments(
                consumer=name,
                is_connected=isinstance(coordinator.sessions[name], Link),
                segments=tuple(segment.segment_id for segment in assigned.get(name, ())),
            )
            for name in names[:MAX_SHOWN]
        )
        return cls(type=coordinator.type, layout_epoch=coordinator.layout.epoch, count=len(names), consumers=shown)
