"""Scalable topics whose first segments are the partitions of a plain Kafka topic.

Stage: above the layouts, for `ScalableTopicService`. As in Pulsar 5's migration, every partition is a sealed segment of
all hashes and a parent of every active one: the partitioner that filled them knew other hashes, so a key's earlier
messages may be in any of them, and all are drained before an active segment is read.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

from msgspec.structs import replace as replace_segment
from pydantic import Field, ValidationError

from anabranch.controller.errors import Conflict, PreconditionFailed
from anabranch.controller.layouts.reader import LayoutReader
from anabranch.controller.segments.base import SegmentStore
from anabranch.controller.segments.kafka_names import KafkaPartition, adopted_name, adopted_partition
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from decisions.topic.segment import Segment, SegmentState, segment_topic
from schemas.base import Name, Wire
from schemas.metadata import ScalableTopicMetadata

MAX_PARTITIONS = 1_000
MAX_EDGES = 10_000
"""Of partitions times active segments: each is a parent of each."""
MAX_SUBSCRIPTIONS = 500
"""All are stored in one commit."""
MAX_POSITIONS = 10_000
"""Each is set by requests of its own."""
Position = Annotated[int, Field(ge=0, lt=2**63)]


class Adoption(Wire):
    """Adopted topic, sealed before, and where its consumer groups are."""

    kafka_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
    partitions: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)]
    segments: Annotated[int, Field(ge=1, le=HASH_SPACE)] = 1
    """Active segments of the new topic."""
    subscriptions: Annotated[dict[Name, tuple[Position, ...]], Field(max_length=MAX_SUBSCRIPTIONS)]
    """Positions by subscription, one for each partition."""

    @property
    def fault(self) -> str | None:
        """Return why it is impossible; None: it is not."""
        if self.partitions * self.segments > MAX_EDGES:
            return f"partitions times segments must be <= {MAX_EDGES}: begin with fewer segments, and split later"
        if any(len(positions) != self.partitions for positions in self.subscriptions.values()):
            return "each subscription must have one position for each partition"
        if self.partitions * len(self.subscriptions) > MAX_POSITIONS:
            return f"partitions times subscriptions must be <= {MAX_POSITIONS}: delete groups that nobody uses"
        return None

    @classmethod
    def faults_of(cls, request: str) -> list[str]:
        """Return why a request, JSON, would be refused; the controller may find more."""
        try:
            fault = cls.model_validate_json(request).fault
        except ValidationError as error:
            return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return [] if fault is None else [fault]

    def applied_to(self, layout: SegmentLayout, now_ms: int) -> SegmentLayout:
        """Return a new topic's layout with the partitions as parents of its segments."""
        ids = range(self.partitions)
        children = {self.partitions + id: segment for id, segment in layout.segments.items()}
        partitions = (KafkaPartition(self.kafka_topic, id) for id in ids)
        segments = {
            id: Segment(
                id,
                0,
                HASH_SPACE - 1,
                SegmentState.SEALED,
                child_ids=tuple(children),
                sealed_at_epoch=0,
                created_at_ms=now_ms,
                sealed_at_ms=now_ms,
                legacy_topic_name=adopted_name(partition),
            )
            for id, partition in zip(ids, partitions, strict=True)
        }
        for id, segment in children.items():
            segments[id] = replace_segment(segment, segment_id=id, parent_ids=tuple(ids))
        return replace(layout, next_segment_id=len(segments), segments=MappingProxyType(segments))

    def check_unclaimed(self, topic: str, layouts: LayoutReader) -> None:
        """Raise `Conflict` if another scalable topic has partitions of the Kafka topic."""
        for other, record in layouts.synced().layouts_and_creations():
            # Cheap for the many topics that have adopted nothing.
            if other == topic or f"kafka://{self.kafka_topic}/".encode() not in record:
                continue
            segments = ScalableTopicMetadata.model_validate_json(record).segments.values()
            partitions = (adopted_partition(segment.legacy_topic_name) for segment in segments)
            if any(partition and partition.topic == self.kafka_topic for partition in partitions):
                raise Conflict(f"{other} has adopted {self.kafka_topic}: use it, or delete it first")

    def check(self, topic: str, layout: SegmentLayout, store: SegmentStore, layouts: LayoutReader) -> None:
        """Raise `PreconditionFailed` for a partition that takes messages, `SegmentNotFound` for a missing one.

        Raises `Conflict` if another scalable topic has them.
        """
        self.check_unclaimed(topic, layouts)
        for id in range(self.partitions):
            if not store.is_terminated(segment_topic(topic, layout.segments[id])):
                raise PreconditionFailed(f"{layout.segments[id].legacy_topic_name} takes messages: seal it first")

    def set_positions(self, topic: str, layout: SegmentLayout, store: SegmentStore) -> None:
        """Give the subscriptions their positions in the partitions; may be repeated."""
        for subscription, positions in self.subscriptions.items():
            for id, position in enumerate(positions):
                store.set_position(segment_topic(topic, layout.segments[id]), subscription, position)
