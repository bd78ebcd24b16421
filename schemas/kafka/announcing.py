"""Encoding of announcements on Kafka: the sender's stamp, and smaller forms of large layouts.

Stage: under `anabranch.controller.outbox.announcements` and `anabranch.collectors.announcements`, which build the
messages.
"""

from collections.abc import Iterator

from schemas.kafka.messages import LayoutCause
from schemas.metadata import HashRange, ScalableTopicMetadata, SegmentInfo


def stamp_message(message: bytes, sender: int) -> bytes:
    """Return a JSON message with its sender's number first (`schemas.kafka.messages.Sender`)."""
    return b'{"sender":%d,%s' % (sender, message[1:])


def shorter_and_shorter(layout: ScalableTopicMetadata, cause: LayoutCause) -> Iterator[ScalableTopicMetadata]:
    """Yield smaller and smaller forms of a layout.

    The layout; without its sealed segments, if it has any; for a deleted topic, with a single segment.
    """
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
