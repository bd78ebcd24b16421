"""Slowness is told by what brokers report, is never told by what is missing, and decides nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.decide import decide
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.slowness import slowness_of
from decisions.topic.layout import SegmentLayout
from schemas.kafka.delivery import Delivery, SegmentDelivery
from tests.decisions.snapshots import COLD, DEFAULT, MINUTE, NOW, load, random_snapshot, snapshot, stream

HOT, READY, BUSY = (
    load((20_000, 0, 0, 0)),
    {"consumers": 1, "ready_consumers": 1},
    {"consumers": 1, "ready_consumers": 0},
)
"""20,000 msg/s in are twice the threshold."""


def slow(id=0, backlog=6_000, **fields):
    values = {"subscription": "billing", "msg_rate_out": 10.0, **BUSY, **fields}
    return SegmentDelivery(id=id, backlog=backlog, **values)


def report(*segments, reported=2, at=NOW):
    return Delivery(at=at, reported=reported, segments=list(segments))


def judged(*segments, reported=2, at=NOW, loads=None, **more):
    layout = SegmentLayout.create(2, NOW - 600 * MINUTE)
    return slowness_of(snapshot(layout, loads, delivery=report(*segments, reported=reported, at=at), **more))


@pytest.mark.parametrize(
    ("verdict", "fields", "loads", "more"),
    [
        ("consumers", {}, {0: load(COLD)}, {}),
        ("consumers", {}, {0: HOT}, {"reported": 1}),
        ("consumers", {"consumers": 0}, {0: HOT}, {}),
        ("consumers", {"consumers": 2, "ready_consumers": 0, "blocked_consumers": 2}, {0: HOT}, {}),
        ("segments", {}, {0: HOT}, {}),
        ("segments", {}, {0: load(COLD)}, {"consumers": stream(3)}),
        ("segments", READY, {0: HOT}, {}),
        ("unknown", READY, {0: load(COLD)}, {}),
        ("unknown", {}, {0: None}, {}),
    ],
    ids=[
        "busy",
        "busy-everywhere",
        "absent",
        "blocked",
        "uneven",
        "idle-consumers",
        "ready-and-hot",
        "ready-and-cold",
        "no-load",
    ],
)
def test_cause_follows_from_consumers_and_load(verdict, fields, loads, more):
    found = judged(slow(**fields), loads=loads, **more)
    assert (found.verdict, [one.cause for one in found.slow]) == (verdict, [verdict])


def test_a_hot_key_is_named_unless_nobody_reads_it():
    key = HotKey(100, 100, 0, 32_767, 2.0, NOW - MINUTE)
    known = {"hot_keys": (key,), "loads": {0: HOT}, "policy": DEFAULT}
    assert judged(slow(), **known).verdict == "hot-key"
    assert judged(slow(1), **known).verdict != "hot-key"
    assert judged(slow(consumers=0), **known).verdict == "consumers"


def test_a_segment_of_one_hash_is_one_hot_key():
    layout = SegmentLayout.create(65_536, NOW - MINUTE)
    found = slowness_of(snapshot(layout, delivery=report(slow(7), reported=65_536)))
    assert found.verdict == "hot-key"


def test_shared_segments_leave_no_consumer_idle():
    layout = SegmentLayout.create(2, NOW - 60 * MINUTE, bucket_budget=8)
    assert layout.active[0].bucket_count == 4
    for count, verdict in ((8, "consumers"), (9, "segments")):
        found = slowness_of(snapshot(layout, delivery=report(slow()), consumers=stream(count)))
        assert found.verdict == verdict


def test_the_largest_backlog_decides():
    found = judged(slow(0, 100, consumers=0, msg_rate_out=0.0), slow(1, 9_000, **READY), loads={1: HOT})
    assert (found.verdict, found.backlog, found.backlog_of("segments")) == ("segments", 9_100, 9_000)
    assert [one.segment.segment_id for one in found.slow] == [1, 0]


@pytest.mark.parametrize(("age", "verdict"), [(59.9, "not-slow"), (60.0, "consumers")])
def test_backlog_age_outranks_its_size(age, verdict):
    assert judged(slow(backlog=10**9, msg_rate_out=1.0, backlog_age_seconds=age)).verdict == verdict


def test_what_is_not_reported_is_never_not_slow():
    assert slowness_of(snapshot(2)).verdict == "unknown"
    assert judged().verdict == "not-slow"
    assert judged(reported=1).verdict == "unknown"
    assert judged(at=NOW - 120 * MINUTE).verdict == "not-slow"
    assert judged(at=NOW - 120 * MINUTE - 1).verdict == "unknown"
    assert judged(slow(), at=NOW - 5 * MINUTE).verdict == "consumers"
    assert judged(slow(), at=NOW - 5 * MINUTE - 1).verdict == "unknown"
    assert judged(slow(99), reported=2).verdict == "unknown"


def test_report_does_not_cover_later_segments():
    layout = SegmentLayout.create(2, NOW - MINUTE).split_segment(0, NOW - 1)
    found = slowness_of(snapshot(layout, delivery=report(reported=3, at=NOW - 2)))
    assert (found.verdict, found.unreported) == ("unknown", 2)


deliveries = st.builds(
    lambda **fields: SegmentDelivery(**fields),
    id=st.integers(0, 12),
    subscription=st.sampled_from(["billing", "audit"]),
    backlog=st.integers(0, 10**6),
    msg_rate_out=st.sampled_from([0.0, 0.5, 100.0]),
    consumers=st.integers(0, 3),
    ready_consumers=st.integers(0, 3),
    blocked_consumers=st.integers(0, 3),
    waiting_publishers=st.none() | st.just(2),
    backlog_age_seconds=st.none() | st.sampled_from([0.0, 60.0, 1e9]),
)
reports = st.builds(
    lambda **fields: Delivery(**fields),
    at=st.sampled_from([NOW - 10**9, NOW - MINUTE, NOW]),
    reported=st.integers(0, 20),
    segments=st.lists(deliveries, max_size=6, unique_by=lambda one: one.id),
)


@given(st.integers(0, 2**32), reports, st.randoms(use_true_random=False))
def test_verdict_is_total_stable_and_decides_nothing(seed, delivery, rng):
    seen = random_snapshot(Random(seed), guards=True)
    reported = replace(seen, delivery=delivery)
    assert decide(reported) == decide(seen)
    found = slowness_of(reported)
    shuffled = rng.sample(delivery.segments, len(delivery.segments))
    assert slowness_of(replace(seen, delivery=delivery.model_copy(update={"segments": shuffled}))) == found
    active = {one.segment_id for one in seen.layout.active}
    assert {one.segment.segment_id for one in found.slow} <= active
    if found.verdict == "not-slow":
        assert (found.slow, found.unreported) == ((), 0)
    if found.slow:
        assert found.verdict in {one.cause for one in found.slow}
        assert all(found.backlog_of(one.cause) <= found.backlog_of(found.verdict) for one in found.slow)


@given(st.integers(0, 2**32), reports)
def test_more_ready_consumers_never_blame_consumers(seed, delivery):
    """A consumer that becomes ready, with nothing blocked, is not what the topic is short of."""
    seen = random_snapshot(Random(seed))
    ready = [
        one.model_copy(update={"consumers": 1, "ready_consumers": 1, "blocked_consumers": 0})
        for one in delivery.segments
    ]
    found = slowness_of(replace(seen, delivery=delivery.model_copy(update={"segments": ready})))
    assert all(one.cause != "consumers" for one in found.slow)
