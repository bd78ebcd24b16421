"""The guards of the profile `default` (`decisions.autoscale.policy`): each against the case it is for, on and off."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from decisions.autoscale.decide import Hold, Merge, Split, decide
from decisions.autoscale.gates import Gate
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from tests.decisions.snapshots import COLD, DEFAULT, MINUTE, NOW, PIP, SECOND, load, msg_rate, snapshot, stream


def action(one):
    answer = decide(one)
    if isinstance(answer, Split):
        return ("split", answer.segment, answer.reason)
    return answer.gate if isinstance(answer, Hold) else ("merge", answer.segments)


def cold(number, **rest):
    return snapshot(number, {place: load(COLD) for place in range(number)}, **rest)


@pytest.mark.parametrize(("consumers", "merges"), [(0, True), (2, True), (3, False), (4, False)])
def test_no_merge_below_managed_consumers(consumers, merges):
    one = cold(3, policy=DEFAULT, consumers=stream(consumers), last_split_at=NOW)
    answer = decide(one)
    assert isinstance(answer, Merge) == merges
    if consumers == 3:
        assert answer.gate is Gate.MERGE_CONSUMERS


def test_queue_consumers_need_no_segment():
    assert isinstance(decide(cold(3, policy=DEFAULT, consumers=stream(9, kind="QUEUE"))), Merge)


@cache
def narrow(width_two_at=None):
    """Every hash its own segment, but for one place with two."""
    if width_two_at is None:
        return SegmentLayout.create(HASH_SPACE, 0)
    return narrow().merge_segments(width_two_at, width_two_at + 1, 0)


WIDE_CAP = replace(DEFAULT, max_segments=HASH_SPACE + 1)


def test_one_hot_key_is_told_and_not_split():
    assert action(snapshot(narrow(), {7: msg_rate(1e6)}, WIDE_CAP)) is Gate.UNSPLITTABLE
    assert action(snapshot(narrow(), {}, WIDE_CAP, consumers=stream(HASH_SPACE + 1))) is Gate.UNSPLITTABLE


def test_hot_key_does_not_block_next_segment():
    layout = narrow(width_two_at=100)
    merged = layout.next_segment_id - 1
    loads = {7: msg_rate(1e9), merged: msg_rate(20_000)}
    assert action(snapshot(layout, loads, WIDE_CAP)) == ("split", merged, "msgRateIn")
    demand = stream(HASH_SPACE + 1)
    assert action(snapshot(layout, loads, WIDE_CAP, consumers=demand)) == ("split", merged, "consumer-count")


def test_hot_key_does_not_block_merge():
    loads = {0: load(COLD), 1: load(COLD), 7: msg_rate(1e6)}
    assert action(snapshot(narrow(), loads, WIDE_CAP)) == ("merge", (0, 1))


def test_coldest_pair_is_furthest_below_thresholds():
    loads = {0: load((900, 10, 0, 0)), 1: load((900, 10, 0, 0)), 2: load((0, 1e6, 0, 0)), 3: load((0, 1e6, 0, 0))}
    assert action(snapshot(4, loads, PIP)) == ("merge", (0, 1))
    assert action(snapshot(4, loads, DEFAULT)) == ("merge", (2, 3))


def test_noisy_idle_segment_cold_below_thresholds():
    wobbling = load(COLD, NOW - SECOND, cold_since=NOW - 5 * MINUTE)
    one = snapshot(2, {0: wobbling, 1: wobbling}, DEFAULT)
    assert action(one) == ("merge", (0, 1))
    assert action(replace(one, policy=PIP)) is Gate.MERGE_WINDOW


def test_without_a_cold_since_the_record_stands_in():
    assert action(snapshot(2, {0: load(COLD), 1: load(COLD)}, DEFAULT)) == ("merge", (0, 1))


@pytest.mark.parametrize(("age", "known"), [(180_000, True), (180_001, False), (-5, True)])
def test_load_of_maximum_age_neither_hot_nor_cold(age, known):
    hot = msg_rate(1e6, seen_at=NOW - age)
    assert action(snapshot(loads={0: hot}, policy=DEFAULT)) == (("split", 0, "msgRateIn") if known else Gate.LOAD_STALE)
    chilled = {place: load(COLD, seen_at=NOW - age) for place in (0, 1)}
    assert action(snapshot(2, chilled, DEFAULT)) == (("merge", (0, 1)) if known else Gate.LOAD_STALE)


def test_a_stale_load_counts_as_none_for_the_busiest():
    loads = {0: msg_rate(9_000, seen_at=NOW - 4 * MINUTE), 1: msg_rate(5)}
    assert action(snapshot(2, loads, DEFAULT, consumers=stream(3))) == ("split", 1, "consumer-count")


def test_without_a_seen_at_the_record_stands_in():
    assert action(snapshot(loads={0: msg_rate(1e6, seen_at=None)}, policy=DEFAULT)) is Gate.LOAD_STALE


@pytest.mark.parametrize(
    ("failures", "pause"),
    [(1, 30 * SECOND), (2, 60 * SECOND), (3, 120 * SECOND), (7, 1920 * SECOND), (8, 3_600_000), (2**31 - 1, 3_600_000)],
)
def test_failure_pause_doubles_to_an_hour(failures, pause):
    for ago, expected in ((pause - 1, Gate.RETRY_BACKOFF), (pause, ("split", 0, "msgRateIn"))):
        one = snapshot(loads={0: msg_rate(1e6)}, policy=DEFAULT, failures=failures, failed_at=NOW - ago)
        assert action(one) == expected


def test_a_failed_action_holds_only_its_own_kind():
    failed = {"policy": DEFAULT, "failures": 1, "failed_at": NOW}
    hot = snapshot(loads={0: msg_rate(1e6)}, **failed)
    assert action(replace(hot, failed_action="merge")) == ("split", 0, "msgRateIn")
    assert action(replace(hot, failed_action="split")) is Gate.RETRY_BACKOFF
    chilled = cold(2, **failed)
    assert action(replace(chilled, failed_action="split")) == ("merge", (0, 1))
    assert action(replace(chilled, failed_action="merge")) is Gate.RETRY_BACKOFF


def test_the_text_of_the_pip_knows_no_back_off():
    one = snapshot(loads={0: msg_rate(1e6)}, policy=PIP, failures=9, failed_at=NOW)
    assert action(one) == ("split", 0, "msgRateIn")


@pytest.mark.parametrize("trigger", ["tick", "consumer"])
def test_no_merge_guard_blocks_a_split(trigger):
    one = cold(
        2,
        policy=DEFAULT,
        consumers=stream(3),
        merge_depths={0: 99, 1: 99},
        last_merge_at=NOW,
        trigger=trigger,
        failures=5,
        failed_at=NOW,
        failed_action="merge",
    )
    assert action(one) == ("split", 0, "consumer-count")
