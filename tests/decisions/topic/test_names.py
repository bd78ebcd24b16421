"""Descriptors and segment-topic names, written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from decisions.topic.names import (
    parse_segment_descriptor,
    parse_segment_topic_name,
    segment_descriptor,
    segment_topic_name,
)
from decisions.topic.segment import segment_topic

hashes = st.integers(0, 0xFFFF)


def test_descriptor_is_two_hex_words_and_an_id():
    upper = SegmentLayout.create(2, 0).segments[1]
    assert upper.descriptor == "8000-ffff-1"
    assert segment_topic("topic://acme/shop/orders", upper) == "segment://acme/shop/orders/8000-ffff-1"


@given(st.tuples(hashes, hashes).map(sorted), st.integers(0, 2**63 - 1))
def test_a_descriptor_reads_back(ends, segment_id):
    text = segment_descriptor(*ends, segment_id)
    assert parse_segment_descriptor(text) == (*ends, segment_id)
    name = segment_topic_name("topic://acme/shop/a/b", text)
    assert parse_segment_topic_name(name) == ("topic://acme/shop/a/b", (*ends, segment_id))


@pytest.mark.parametrize(
    "text", ["", "0000-7fff", "0-7fff-1", "0000-7FFF-1", "8000-7fff-1", "0000-7fff-01", "0000-7fff-1 "]
)
def test_another_form_is_no_descriptor(text):
    with pytest.raises(ValueError, match="descriptor"):
        parse_segment_descriptor(text)


@pytest.mark.parametrize(
    "name", ["topic://a/b/c/0000-7fff-1", "segment://a/b/0000-7fff-1", "segment:/a/b/c/0000-7fff-1"]
)
def test_another_form_is_no_segment_topic(name):
    with pytest.raises(ValueError, match="segment topic"):
        parse_segment_topic_name(name)
