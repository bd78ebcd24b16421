"""Names of segments in Kafka: legal, reversible, never the same for two segments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.segments.base import NameTooLong
from controller.segments.kafka_names import (
    MAX_KAFKA_NAME,
    check_fits,
    group_id,
    kafka_topic,
    segment_of,
    subscription_of,
)
from decisions.topic.names import segment_descriptor
from schemas.base import MAX_SEGMENT_ID

part = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=12)
rest = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("./_-#%2"), min_size=1, max_size=12)
descriptor = st.builds(
    lambda one, other, number: segment_descriptor(min(one, other), max(one, other), number),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFF),
    st.integers(0, MAX_SEGMENT_ID),
)
segment = st.builds("segment://{}/{}/{}/{}".format, part, part, rest, descriptor)


@given(segment)
def test_a_name_comes_back_from_kafka_or_is_refused_for_its_length(name: str) -> None:
    try:
        there = kafka_topic(name)
    except NameTooLong:
        assert 3 * len(name.encode()) > MAX_KAFKA_NAME
        return
    assert re.fullmatch(r"[a-zA-Z0-9.-]{1,249}", there)
    assert segment_of(there) == name


@given(st.text("segmntac-.5f0/1", max_size=40).map("segment..".__add__))
def test_a_kafka_topic_is_a_segment_only_if_the_segment_leads_to_it(there: str) -> None:
    try:
        name = segment_of(there)
    except ValueError:
        return
    assert kafka_topic(name) == there


@given(segment, st.text(max_size=8), segment, st.text(max_size=8))
def test_a_group_belongs_to_one_subscription_of_one_segment(one: str, sub: str, other: str, other_sub: str) -> None:
    try:
        group = group_id(one, sub)
        assert subscription_of(group, one) == sub
        assert (group_id(other, other_sub) == group) == ((one, sub) == (other, other_sub))
        assert one == other or subscription_of(group, other) is None
    except NameTooLong:
        return


def test_names_that_kafka_takes_for_the_same_stay_apart() -> None:
    names = [
        f"segment://acme/shop/{name}/0000-ffff-0" for name in ("a.b", "a_b", "a/b", "a-b", "a..b", "a%2Eb", "a.2eb")
    ]
    there = {kafka_topic(name).replace(".", "_") for name in names}
    assert len(there) == len(names)
    assert kafka_topic("segment://acme/shop/new_orders/0000-7fff-1") == "segment..acme..shop..new.5forders..0000-7fff-1"


def test_a_topic_fits_only_if_its_last_segment_would() -> None:
    longest = MAX_KAFKA_NAME - len(f"segment..acme..shop....0000-ffff-{MAX_SEGMENT_ID}")
    check_fits(f"topic://acme/shop/{'x' * longest}")
    with pytest.raises(NameTooLong, match="choose a shorter name"):
        check_fits(f"topic://acme/shop/{'x' * (longest + 1)}")


@pytest.mark.parametrize(
    "there",
    [
        "control-events",
        "segment..a..b..0000-ffff-0",
        "segment..a..b..c..ffff-0000-0",
        "segment..a..b..c.2d..0000-ffff-0",
    ],
)
def test_another_kafka_topic_is_no_segment(there: str) -> None:
    with pytest.raises(ValueError):
        segment_of(there)
