"""What a consumer is told: its whole assignment (PIP-468 "ConsumerRegistration and ConsumerAssignment").

Stage: made from a `Push` of the coordinator, sent by `controller.sessions.connections` and answered over REST.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.sessions.coordinator import Push
from decisions.topic.segment import segment_topic
from schemas.base import Epoch, Millis, SegmentId, TopicName, Wire
from schemas.metadata import HashRange


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
    topic_created_at: Annotated[Millis | None, Field(exclude_if=lambda value: value is None)] = None
    """Which life of its name the topic is: part of the names that its segments have in Kafka. Not in the PIP."""

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
        return cls(layout_epoch=push.epoch, assigned_segments=segments, topic_created_at=push.topic_created_at)
