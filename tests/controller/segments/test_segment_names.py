"""Names of segments in Kafka: legal, reversible, never the same for two segments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.segments.base import NameTooLong
from anabranch.controller.segments.kafka_names import (
    MAX_KAFKA_NAME,
    check_fits,
    group_id,
    kafka_topic,
    segment_of,
    subscription_of,
)
from decisions.topic.names import segment_descriptor
from schemas.base import MAX_MILLIS, MAX_SEGMENT_ID

part = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=12)
rest = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("./_-#%2"), min_size=1, max_size=12)
descriptor = st.builds(
    lambda one, other, number: segment_descriptor(min(one, other), max(one, other), number),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
    st.integers(0, MAX_SEGMENT_ID),
)
segment = st.builds("segment://{}/{}/{}/{}".format, part, part, rest, descriptor)


lives = st.none() | st.integers(0, MAX_MILLIS)


@given(segment, lives)
def test_name_round_trips_or_is_refused_for_length(name: str, life: int | None) -> None:
    try:
        there = kafka_topic(name, life)
    except NameTooLong:
        assert 3 * len(name.encode()) + 20 > MAX_KAFKA_NAME
        return
    assert re.fullmatch(r"[a-zA-Z0-9.-]{1,249}", there)
    assert segment_of(there) == (name, life)


@given(st.text("segmntac-.5f0/1", max_size=40).map("segment..".__add__))
def test_kafka_topic_is_segment_when_names_agree(there: str) -> None:
    try:
        name, life = segment_of(there)
    except ValueError:
        return
    assert kafka_topic(name, life) == there


@given(st.tuples(segment, lives), st.text(max_size=8), st.tuples(segment, lives), st.text(max_size=8))
def test_group_belongs_to_one_segment_incarnation(
    one: tuple[str, int | None], sub: str, other: tuple[str, int | None], other_sub: str
) -> None:
    try:
        group = group_id(one[0], sub, one[1])
        assert subscription_of(group, *one) == sub
        assert (group_id(other[0], other_sub, other[1]) == group) == ((one, sub) == (other, other_sub))
        assert one == other or subscription_of(group, *other) is None
    except NameTooLong:
        return


def test_names_equal_to_kafka_stay_apart() -> None:
    names = [
        f"segment://acme/shop/{name}/0000-ffff-0" for name in ("a.b", "a_b", "a/b", "a-b", "a..b", "a%2Eb", "a.2eb")
    ]
    there = {kafka_topic(name).replace(".", "_") for name in names}
    assert len(there) == len(names)
    name = "segment://acme/shop/new_orders/0000-7fff-1"
    assert kafka_topic(name) == "segment..acme..shop..new.5forders..0000-7fff-1"
    assert kafka_topic(name, 1763660000000) == "segment..acme..shop..new.5forders..0000-7fff-1..1763660000000"


def test_a_topic_fits_only_if_its_last_segment_would() -> None:
    longest = MAX_KAFKA_NAME - len(f"segment..acme..shop....0000-ffff-{MAX_SEGMENT_ID}")
    check_fits(f"topic://acme/shop/{'x' * longest}")
    with pytest.raises(NameTooLong, match="choose a shorter name"):
        check_fits(f"topic://acme/shop/{'x' * (longest + 1)}")
    check_fits(f"topic://acme/shop/{'x' * (longest - 17)}", 1)
    with pytest.raises(NameTooLong, match="choose a shorter name"):
        check_fits(f"topic://acme/shop/{'x' * (longest - 16)}", 1)


@pytest.mark.parametrize(
    "there",
    [
        "control-events",
        "segment..a..b..0000-ffff-0",
        "segment..a..b..c..ffff-0000-0",
        "segment..a..b..c.2d..0000-ffff-0",
        "segment..a..b..c..0000-ffff-0..01",
        "segment..a..b..c..0000-ffff-0..1..1",
    ],
)
def test_another_kafka_topic_is_no_segment(there: str) -> None:
    with pytest.raises(ValueError):
        segment_of(there)
