"""What is stored of a subscription and sent to its consumers: JSON, its round trip and its bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.controller.metadata.records import ConsumerRegistration, SubscriptionRecord
from anabranch.controller.sessions.coordinator import Away, Link, Push, SubscriptionCoordinator, restore
from anabranch.controller.sessions.messages import ConsumerAssignment
from decisions.topic.layout import SegmentLayout
from schemas.base import MAX_NAME_BYTES
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import MAX_SEGMENTS_IN_METADATA
from tests.controller.layout_strategies import drained_layouts
from tests.controller.sessions.stored import record_of, registrations

TOPIC = "topic://acme/shop/orders"
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(drained_layouts(), st.sets(names, max_size=8), st.sampled_from(["STREAM", "CHECKPOINT", "QUEUE"]))
def test_stored_subscription_restored_disconnected(
    state: tuple[SegmentLayout, frozenset[int]], consumers: set[str], type: SubscriptionType
) -> None:
    layout, drained = state
    before = SubscriptionCoordinator("billing", type, 60_000, layout, dict.fromkeys(consumers, Link(1, 1)), drained)
    after = restore(
        "billing",
        SubscriptionRecord.model_validate_json(record_of(before).to_json()),
        [ConsumerRegistration.model_validate_json(one.to_json()) for one in registrations(before)],
        layout,
        60_000,
        1000,
    )
    assert after.assignment == before.assignment
    kept = {name: frozenset(one.segment_id for one in some) for name, some in before.assignment.items() if some}
    assert after == replace(before, sessions=dict.fromkeys(consumers, Away(61_000)), kept=kept)


def test_record_independent_of_draining_order() -> None:
    layout = SegmentLayout.create(2, 0).split_segment(0, 1).split_segment(1, 2)
    one = SubscriptionCoordinator("billing", "STREAM", 60_000, layout)
    either, other = one.drain([0])[0].drain([1])[0], one.drain([1])[0].drain([0])[0]
    assert record_of(either).to_json() == record_of(other).to_json()
    assert json.loads(record_of(either).to_json()) == {"type": "STREAM", "drained": [0, 1]}


def test_pruned_drained_segments_left_out() -> None:
    layout = SegmentLayout.create(1, 0).split_segment(0, 1).prune_segment(0)
    assert restore("s", SubscriptionRecord(type="STREAM", drained=(0,)), [], layout, 1, 0).drained == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        '{"drained":[0]}',
        '{"type":"SHARED","drained":[]}',
        '{"type":"STREAM","drained":[-1]}',
        '{"type":"STREAM","drained":"0"}',
        json.dumps({"type": "STREAM", "drained": [0] * (MAX_SEGMENTS_IN_METADATA + 1)}),
    ],
)
def test_a_record_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        SubscriptionRecord.model_validate_json(text)


def test_any_allowed_layout_storable_as_drained() -> None:
    ids = tuple(range(MAX_SEGMENTS_IN_METADATA))
    text = SubscriptionRecord(type="STREAM", drained=ids).to_json()
    assert SubscriptionRecord.model_validate_json(text).drained == ids


@pytest.mark.parametrize("name", ["", "n" * (MAX_NAME_BYTES + 1)])
def test_a_registration_needs_a_name_within_bounds(name: str) -> None:
    with pytest.raises(ValidationError):
        ConsumerRegistration(consumer_name=name)


def test_consumer_told_epoch_ranges_and_topics() -> None:
    layout = SegmentLayout.create(2, 0).split_segment(1, 1)
    legacy = msgspec.structs.replace(layout.segments[0], legacy_topic_name="persistent://acme/shop/orders-partition-0")
    layout = replace(layout, segments=MappingProxyType({**layout.segments, 0: legacy}))
    assignment = ConsumerAssignment.of(TOPIC, Push("a", Link(1, 0), layout.epoch, layout.active[:2]))
    assert json.loads(assignment.to_json()) == {
        "layoutEpoch": 1,
        "assignedSegments": [
            {
                "segmentId": 0,
                "hashRange": {"start": 0, "end": 0x7FFF},
                "underlyingTopicName": "persistent://acme/shop/orders-partition-0",
            },
            {
                "segmentId": 2,
                "hashRange": {"start": 0x8000, "end": 0xBFFF},
                "underlyingTopicName": "segment://acme/shop/orders/8000-bfff-2",
            },
        ],
    }


def test_the_longest_topic_name_can_be_assigned() -> None:
    topic = "topic://acme/shop/" + "o" * (MAX_NAME_BYTES - len("topic://acme/shop/"))
    push = Push("a", Link(1, 0), 0, SegmentLayout.create(1, 0).active)
    assert topic[8:] in ConsumerAssignment.of(topic, push).assigned_segments[0].underlying_topic_name
