"""A broker's own load report becomes rates of segments, or is refused; never half of it, never zero in place of it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.collectors.announcements import LoadRates, load_records
from anabranch.collectors.pulsar.broker_stats import BadStats, read_broker_stats
from anabranch.collectors.pulsar.topic_stats import read_topic_stats
from schemas.kafka.messages import Rejected, parse_message

RATES = {"msgRateIn": 1.5, "msgThroughputIn": 200.0, "msgRateOut": 3.0, "msgThroughputOut": 400.0}


def answer(**topics):
    return json.dumps({"acme/shop": {"0x00000000_0xffffffff": {"persistent": topics}}}).encode()


def segment(name="segment://acme/shop/orders/0000-ffff-0", **more):
    return answer(**{name: {**RATES, "storageSize": 7, "publishers": [], **more}})


def test_segment_rates_read_and_others_ignored():
    found = read_broker_stats(segment())
    assert found.loads == [LoadRates("topic://acme/shop/orders", 0, 1.5, 200.0, 3.0, 400.0)]
    assert found.refused == 0


def test_a_topic_name_may_hold_slashes():
    assert read_broker_stats(segment("segment://acme/shop/a/b/8000-ffff-12")).loads[0][:2] == (
        "topic://acme/shop/a/b",
        12,
    )


def test_topics_that_are_no_segments_do_not_count():
    assert read_broker_stats(answer(**{"persistent://acme/shop/plain": RATES})).loads == []


@pytest.mark.parametrize(
    "wrong", [{"msgRateIn": -1.0}, {"msgRateOut": 1e400}, {"msgThroughputIn": "NaN"}, {"msgThroughputOut": None}]
)
def test_segment_without_rates_is_unknown(wrong):
    both = answer(
        **{
            "segment://acme/shop/orders/0000-7fff-0": {**RATES, **wrong},
            "segment://acme/shop/orders/8000-ffff-1": RATES,
        }
    )
    found = read_broker_stats(both.replace(b"Infinity", b"1e999"))
    assert [load.segment for load in found.loads] == [1]
    assert found.refused == 1


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "segment://acme/orders/0000-ffff-0",
        "segment://a/b/c/0000-ffff-x",
        "segment://a/b/c/0000-ffff-99999999999999999999",
        "segment://a/b/ c/0000-ffff-0",
    ],
)
def test_a_name_that_is_no_segment_is_no_sample(name):
    assert read_broker_stats(segment(name)).loads == []


@given(st.integers(0, 10_000))
def test_an_answer_that_was_cut_is_refused_whole(cut):
    whole = segment()
    with pytest.raises(BadStats, match="not a broker's load"):
        read_broker_stats(whole[: cut % len(whole)])


JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(), inner, max_size=3) | st.lists(inner, max_size=3),
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_garbage_refused_without_exception(body):
    with contextlib.suppress(BadStats):
        assert read_broker_stats(body).loads == []


@given(
    st.lists(
        st.tuples(
            st.text("abc/é", min_size=1, max_size=400).filter(lambda name: not name.startswith("/")),
            st.integers(0, 2**63 - 1),
            *[st.floats(0, 1e300, allow_nan=False)] * 4,
        ),
        max_size=50,
        unique_by=lambda row: row[:2],
    ),
    st.integers(1, 60),
)
def test_what_a_broker_says_is_what_the_job_takes(rows, most):
    loads = sorted(LoadRates(f"topic://a/b/{name}", *rest) for name, *rest in rows)
    found = []
    for record in load_records("broker-1:8080", 1_763_660_000_000, loads):
        message = parse_message(record.source, record.key.encode(), record.value)
        assert not isinstance(message, Rejected)
        assert len(set(message.topics)) == len(message.topics)
        samples = iter(zip(message.ids, *message.rates, strict=True))
        found += [
            (topic, *next(samples))
            for topic, count in zip(message.topics, message.counts, strict=True)
            for _ in range(count)
        ]
    assert found == [(load.topic, load.segment, *(round(rate, 3) for rate in load[2:])) for load in loads]


def test_large_load_split_into_valid_records():
    loads = [
        LoadRates(f"topic://acme/shop/{'n' * 900}-{number // 3}", number % 3, 1e9 / 3, 1e12 / 3, 0.0, 1.0)
        for number in range(30_000)
    ]
    records = list(load_records("broker-1", 1, loads))
    assert all(len(record.value) < 1_000_000 for record in records)
    assert sum(len(parse_message(r.source, r.key.encode(), r.value).ids) for r in records) == 30_000


def test_consumers_read_from_m1_and_later_formats():
    assert read_topic_stats({"epoch": 4, "subscriptions": {"s": {"consumerCount": 2}}}).subscriptions == {
        "s": (None, 2)
    }
    later = {"layout": {"epoch": 5}, "subscriptions": {"s": {"type": "QUEUE", "consumers": [{}, {}, {}]}}}
    assert read_topic_stats(later).subscriptions == {"s": ("QUEUE", 3)}


WORDS = st.sampled_from(["epoch", "layout", "subscriptions", "consumers", "consumerCount", "type", "s"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner),
    )
)
def test_counts_that_are_garbage_are_a_value_error(value):
    with contextlib.suppress(ValueError):
        read_topic_stats(value)
