"""How a change is said on Kafka, whoever says it: stamped with its sender, and as short as the size of a message needs.

Stage: under `controller.outbox.announcements` and `collectors.announcements`, which build the messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from schemas.messages import LayoutCause
from schemas.metadata import HashRange, ScalableTopicMetadata, SegmentInfo


def stamped(message: bytes, sender: int) -> bytes:
    """A message in JSON with the number of its sender before all else (`schemas.messages.Sender`)."""
    return b'{"sender":%d,%s' % (sender, message[1:])


def shorter_and_shorter(layout: ScalableTopicMetadata, cause: LayoutCause) -> Iterator[ScalableTopicMetadata]:
    """The layout; without its sealed segments, if it has any; of a deleted topic, with one segment in place of all."""
    yield layout
    active = {id: segment for id, segment in layout.segments.items() if segment.state == "ACTIVE"}
    if len(active) < len(layout.segments):
        shown = {
            id: segment.model_copy(update={"parent_ids": [parent for parent in segment.parent_ids if parent in active]})
            for id, segment in active.items()
        }
        yield layout.model_copy(update={"segments": shown})
    if cause == "deleted":
        whole = SegmentInfo(segment_id=0, hash_range=HashRange(start=0, end=0xFFFF), state="ACTIVE")
        yield ScalableTopicMetadata(
            epoch=layout.epoch,
            next_segment_id=layout.next_segment_id,
            segments={0: whole},
            created_at_ms=layout.created_at_ms,
        )
