"""Listeners can read every announcement, for layouts of any size."""

from __future__ import annotations

from anabranch.controller.outbox.announcements import Announcement, layout_announcement, policy_announcement
from decisions.topic.layout import SegmentLayout
from schemas.kafka.messages import MAX_VALUE_BYTES, LayoutEvent, Message, PolicyEvent, Rejected, parse_message
from schemas.metadata import HashRange, ScalableTopicMetadata, SegmentInfo

TOPIC = "topic://acme/shop/orders"


def layout(active: int, sealed: int) -> ScalableTopicMetadata:
    """`active` segments of width 1, the first `sealed` of them children of a sealed one each."""
    segments = [
        SegmentInfo(
            segment_id=id,
            hash_range=HashRange(start=id, end=id),
            state="ACTIVE",
            parent_ids=[active + id] if id < sealed else [],
            created_at_ms=1_763_660_000_000,
        )
        for id in range(active)
    ] + [
        SegmentInfo(
            segment_id=active + id,
            hash_range=HashRange(start=id, end=id),
            state="SEALED",
            child_ids=[id],
            sealed_at_epoch=1,
            created_at_ms=1_763_660_000_000,
            sealed_at_ms=1_763_660_000_001,
        )
        for id in range(sealed)
    ]
    return ScalableTopicMetadata(
        epoch=7,
        next_segment_id=active + sealed,
        segments={segment.segment_id: segment for segment in segments},
        properties={"owner": "me"},
    )


def parsed(record: Announcement) -> Message:
    message = parse_message(record.source, record.key.encode(), record.value)
    assert not isinstance(message, Rejected)
    return message


def test_a_layout_that_fits_is_announced_whole() -> None:
    whole = layout(4000, 1000)
    record = layout_announcement(TOPIC, "split", whole, 1_000, "d-1")
    assert record is not None
    event = parsed(record)
    assert isinstance(event, LayoutEvent)
    assert (event.topic, event.cause, event.decision_id, event.at) == (TOPIC, "split", "d-1", 1_000)
    assert event.layout == whole


def test_oversized_layout_announced_without_sealed() -> None:
    record = layout_announcement(TOPIC, "split", layout(4000, 3000), 1_000)
    assert record is not None
    assert len(record.value) <= MAX_VALUE_BYTES
    event = parsed(record)
    assert isinstance(event, LayoutEvent)
    assert (event.layout.epoch, event.layout.properties) == (7, {"owner": "me"})
    assert set(event.layout.segments) == set(range(4000))
    assert all(segment.parent_ids == [] for segment in event.layout.segments.values())


def test_layout_with_oversized_active_not_announced() -> None:
    assert layout_announcement(TOPIC, "created", layout(10_000, 0), 1_000) is None


def test_deletion_announced_for_any_layout_size() -> None:
    last = layout(10_000, 0).model_copy(update={"created_at_ms": 1_763_660_000_000})
    record = layout_announcement(TOPIC, "deleted", last, 1_000)
    assert record is not None
    event = parsed(record)
    assert isinstance(event, LayoutEvent)
    assert (event.cause, event.layout.epoch, event.topic_created_at) == ("deleted", 7, 1_763_660_000_000)
    assert len(SegmentLayout.from_metadata(event.layout).segments) == 1


def test_the_removal_of_a_policy_can_be_read() -> None:
    event = parsed(policy_announcement("acme/shop", None, 1_000))
    assert isinstance(event, PolicyEvent)
    assert (event.name, event.policy) == ("acme/shop", None)
