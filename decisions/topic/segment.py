"""Segment of a topic: a range of hashes, its place in the DAG and the topic that holds its messages."""

from enum import Enum
from typing import Any

import msgspec

from decisions.topic.names import segment_descriptor, segment_topic_name

NOT_SEALED = -1
"""`sealedAtEpoch` and `sealedAtMs` of an active segment, as Pulsar 5 ships it (the PIP's text has 0)."""


BUCKET_RING = 0x10000
"""Hashes of the ring on which a segment's entry buckets lie; it is another one than that of the segments."""


class SegmentState(str, Enum):
    """States of a segment; only an active one takes writes."""

    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


class Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One segment of the DAG (PIP-468 "SegmentInfo"): hashes `start..end`, both inclusive.

    Fields in this order are how segments are stored (`engine.autoscale.layouts`).
    """

    segment_id: int
    start: int
    end: int
    state: SegmentState = SegmentState.ACTIVE
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    created_at_epoch: int = 0
    sealed_at_epoch: int = NOT_SEALED
    created_at_ms: int = 0
    sealed_at_ms: int = NOT_SEALED
    legacy_topic_name: str | None = None
    unknown: tuple[tuple[str, Any], ...] = ()
    """Fields that we do not know, kept for the way back."""
    range_unknown: tuple[tuple[str, Any], ...] = ()
    """The same of its hash range."""
    entry_bucket_splits: tuple[int, ...] | None = None
    """Starts of the entry buckets after the first; None: the topic has no entry buckets."""

    @property
    def width(self) -> int:
        """Number of hashes."""
        return self.end - self.start + 1

    @property
    def bucket_count(self) -> int:
        """Number of entry buckets; 1 where the topic has none."""
        return 1 if self.entry_bucket_splits is None else len(self.entry_bucket_splits) + 1

    @property
    def is_active(self) -> bool:
        """Tell if the segment takes writes."""
        return self.state is SegmentState.ACTIVE

    @property
    def descriptor(self) -> str:
        """Range and id as `0000-7fff-1` (PIP-468 "Segment Topic Management via Admin API")."""
        return segment_descriptor(self.start, self.end, self.segment_id)


def equal_buckets(count: int) -> tuple[int, ...]:
    """Return the starts of all buckets but the first when the ring is cut into `count` of equal width."""
    return tuple(number * BUCKET_RING // count for number in range(1, count))


def segment_topic(topic: str, segment: Segment) -> str:
    """Return the name of a segment's topic: `segment://tenant/namespace/name/0000-7fff-1`."""
    return segment_topic_name(topic, segment.descriptor)
