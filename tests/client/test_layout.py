"""Keys, names and layouts of the clients agree with the controller's on random input."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.segments import kafka_names
from anabranch_client.errors import IncompatibleController
from anabranch_client.layout import Layout, key_hash, key_hash_in_python
from anabranch_client.names import admin_path, group_id, segment_kafka_topic
from decisions.topic import hashing
from decisions.topic.layout import SegmentLayout
from decisions.topic.names import segment_descriptor, segment_topic_name

TOPIC = "topic://acme/shop/orders"
PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=6)


@given(st.binary(max_size=64))
def test_hash_is_that_of_the_controller(key: bytes) -> None:
    assert key_hash(key) == key_hash_in_python(key) == hashing.key_hash(key)


@given(PARTS, PARTS, PARTS, st.integers(0, 0xFFFF), st.integers(0, 10**6), st.none() | st.integers(0, 2**53))
def test_segment_names_are_the_controllers(
    tenant: str, namespace: str, name: str, start: int, id: int, created: int | None
) -> None:
    topic = f"topic://{tenant}/{namespace}/{name}"
    segment = segment_topic_name(topic, segment_descriptor(start, 0xFFFF, id))
    ours = segment_kafka_topic(topic, start, 0xFFFF, id, created)
    assert ours == kafka_names.kafka_topic(segment, created)
    assert group_id(ours, "billing") == kafka_names.group_id(segment, "billing", created)


def test_admin_path_escapes_each_part() -> None:
    assert admin_path("topic://acme/shop/a b/c?d") == "/admin/v2/scalable/acme/shop/a%20b%2Fc%3Fd"


def record_of(layout: SegmentLayout) -> object:
    return json.loads(layout.to_metadata().to_json())


@st.composite
def layouts(draw: st.DrawFn) -> SegmentLayout:
    """Draw a layout after some splits and merges."""
    layout = SegmentLayout.create(draw(st.integers(1, 4)), now_ms=0)
    for number in range(draw(st.integers(0, 8))):
        index = draw(st.integers(0, len(layout.active) - 1))
        if index and draw(st.booleans()):
            pair = layout.active[index - 1].segment_id, layout.active[index].segment_id
            layout = layout.merge_segments(*pair, now_ms=number)
        else:
            layout = layout.split_segment(layout.active[index].segment_id, now_ms=number)
    return layout


@given(layouts(), st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=20))
def test_every_hash_finds_the_controllers_segment(layout: SegmentLayout, hashes: list[int]) -> None:
    ours = Layout.from_record(TOPIC, record_of(layout))
    for hash in hashes:
        assert ours.find(hash).id == layout.find_active_segment(hash).segment_id


@given(layouts())
def test_ancestors_and_descendants_are_inverse(layout: SegmentLayout) -> None:
    ours = Layout.from_record(TOPIC, record_of(layout))
    for id in ours.segments:
        assert ours.ancestors(id) | ours.descendants(id) | {id} == layout.lineage(id)
        assert all(id in ours.descendants(ancestor) for ancestor in ours.ancestors(id))


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": None},
        {"segments": {}},
        {"segments": {"0": {"segmentId": 0}}},
        {"segments": {"0": {"segmentId": 0, "hashRange": {"start": 0, "end": 9}, "state": "ACTIVE"}}},
        {"segments": {"0": {"segmentId": 0, "hashRange": {"start": 0, "end": 0xFFFF}, "state": "PAUSED"}}},
    ],
)
def test_unreadable_layout_names_the_version(damage: dict[str, object]) -> None:
    record = {**dict(json.loads(SegmentLayout.create(1, 0).to_metadata().to_json())), **damage}
    with pytest.raises(IncompatibleController, match="use a client of its version"):
        Layout.from_record(TOPIC, record)
