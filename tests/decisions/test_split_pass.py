"""PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)", rule by rule and at every boundary, in the profile `pip-483`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from decisions.autoscale.decide import Hold, Merge, Split, decide
from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import PROFILES
from decisions.autoscale.snapshot import OpenAction
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from schemas.metadata import RATES
from tests.decisions.snapshots import COLD, MINUTE, NOW, PIP, load, msg_rate, snapshot, stream

HOT = msg_rate(1e6)


def action(one):
    answer = decide(one)
    if isinstance(answer, Split):
        return ("split", answer.segment, answer.reason)
    return answer.gate if isinstance(answer, Hold) else answer


@pytest.mark.parametrize("number", range(4))
def test_split_needs_rate_above_threshold(number):
    limit = PIP.split_thresholds[number]
    for rate, expected in (
        (math.nextafter(limit, 0), Gate.SPLIT_THRESHOLDS),
        (limit, Gate.SPLIT_THRESHOLDS),
        (math.nextafter(limit, math.inf), ("split", 0, RATES[number])),
        (1.7e308, ("split", 0, RATES[number])),
    ):
        rates = [0.0] * 4
        rates[number] = rate
        assert action(snapshot(loads={0: load(rates)})) == expected


def test_split_reason_is_largest_ratio():
    """The first rate wins among equal ratios."""
    assert action(snapshot(loads={0: load((20_000, 200e6, 60_000, 500e6))})) == ("split", 0, "bytesRateIn")
    doubled = [limit * 2 for limit in PIP.split_thresholds]
    assert action(snapshot(loads={0: load(doubled)})) == ("split", 0, "msgRateIn")
    assert action(snapshot(loads={0: load([0.0, *doubled[1:]])})) == ("split", 0, "bytesRateIn")


def test_split_picks_highest_ratio_not_rate():
    loads = {0: load((0, 60e6, 0, 0)), 1: msg_rate(15_000.0)}
    assert action(snapshot(2, loads)) == ("split", 1, "msgRateIn")


def test_equal_overload_splits_lowest_id():
    layout = SegmentLayout.create(2, 0).split_segment(0, 0)
    loads = dict.fromkeys((1, 2, 3), HOT)
    assert [segment.segment_id for segment in layout.active] == [2, 3, 1]
    assert action(snapshot(layout, loads)) == ("split", 1, "msgRateIn")


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [
        ({}, Gate.MERGE_THRESHOLDS),
        (stream(2), Gate.MERGE_THRESHOLDS),
        (stream(3), ("split", 0, "consumer-count")),
        (stream(3, kind="CHECKPOINT"), ("split", 0, "consumer-count")),
        (stream(300, kind="QUEUE"), Gate.MERGE_THRESHOLDS),
        (stream(2, "a") | stream(2, "b"), Gate.MERGE_THRESHOLDS),
        (stream(1, "a") | stream(3, "b"), ("split", 0, "consumer-count")),
    ],
)
def test_surplus_managed_consumers_cause_split(consumers, expected):
    assert action(snapshot(2, consumers=consumers)) == expected


def test_consumer_rule_splits_busiest_by_rate_in():
    busy = {0: load((1, 49e6, 0, 0)), 1: load((2, 0, 0, 0)), 2: None}
    assert action(snapshot(3, busy, consumers=stream(4))) == ("split", 1, "consumer-count")
    assert action(snapshot(3, dict.fromkeys(range(3)), consumers=stream(4))) == ("split", 0, "consumer-count")


def test_the_consumer_rule_comes_before_the_load_rule():
    one = snapshot(2, {1: load((5_000, 900e6, 0, 0)), 0: load((6_000, 0, 0, 0))}, consumers=stream(3))
    assert action(one) == ("split", 0, "consumer-count")


def test_consumer_event_checks_consumer_rule_only():
    assert action(snapshot(2, consumers=stream(3), trigger="consumer")) == ("split", 0, "consumer-count")
    assert action(snapshot(2, {0: HOT}, consumers=stream(2), trigger="consumer")) is Gate.CONSUMER_DEMAND
    cold = {0: load(COLD), 1: load(COLD)}
    assert action(snapshot(2, cold, trigger="consumer")) is Gate.CONSUMER_DEMAND


@pytest.mark.parametrize("trigger", ["tick", "consumer"])
@pytest.mark.parametrize(
    ("ago", "splits"), [(None, True), (60_001, True), (60_000, True), (59_999, False), (0, False), (-5, False)]
)
def test_split_waits_for_cooldown_inclusive(trigger, ago, splits):
    last = None if ago is None else NOW - ago
    found = action(snapshot(consumers=stream(2), last_split_at=last, trigger=trigger))
    assert found == (("split", 0, "consumer-count") if splits else Gate.SPLIT_COOLDOWN)


def test_a_cooldown_of_zero_allows_a_split_now():
    policy = replace(PIP, split_cooldown_ms=0)
    assert action(snapshot(loads={0: HOT}, policy=policy, last_split_at=NOW)) == ("split", 0, "msgRateIn")
    assert action(snapshot(loads={0: HOT}, policy=policy, last_split_at=NOW + 1)) is Gate.SPLIT_COOLDOWN


def test_a_merge_does_not_start_the_split_cooldown():
    assert action(snapshot(loads={0: HOT}, last_merge_at=NOW)) == ("split", 0, "msgRateIn")


@pytest.mark.parametrize(("most", "splits"), [(1, False), (2, False), (3, True)])
def test_splits_stop_at_max_segments(most, splits):
    one = snapshot(2, {0: HOT}, consumers=stream(9), policy=replace(PIP, max_segments=most))
    assert action(one) == (("split", 0, "consumer-count") if splits else Gate.MAX_SEGMENTS)


@pytest.mark.parametrize("held", [{"policy": replace(PIP, max_segments=3)}, {"last_split_at": NOW}])
def test_a_split_that_is_held_does_not_block_a_merge(held):
    one = snapshot(3, {0: load(COLD), 1: load(COLD), 2: HOT}, **held)
    answer = decide(one)
    assert isinstance(answer, Merge)
    assert answer.segments == (0, 1)


def test_floor_and_ceiling_are_no_targets():
    assert action(snapshot(2, policy=replace(PIP, min_segments=4))) is Gate.SPLIT_THRESHOLDS
    assert action(snapshot(6, policy=replace(PIP, max_segments=4))) is Gate.MERGE_THRESHOLDS


def test_missing_record_is_no_load_for_splits():
    assert action(snapshot(2, {0: None, 1: HOT})) == ("split", 1, "msgRateIn")


def test_an_old_record_goes_on_counting():
    ancient = msg_rate(1e6, modified_at=0, seen_at=0)
    assert action(snapshot(loads={0: ancient})) == ("split", 0, "msgRateIn")


def test_hot_segment_of_one_hash_still_chosen():
    layout = SegmentLayout.create(HASH_SPACE, 0)
    policy = replace(PIP, max_segments=HASH_SPACE + 1)
    assert action(snapshot(layout, {7: HOT}, policy)) == ("split", 7, "msgRateIn")


def test_nothing_is_decided_while_off_or_in_flight():
    off = replace(PIP, enabled=False)
    assert action(snapshot(loads={0: HOT}, policy=off, consumers=stream(9))) is Gate.DISABLED
    assert action(snapshot(loads={0: HOT}, in_flight=OpenAction("d", NOW + MINUTE))) is Gate.IN_FLIGHT


def merge_open(loads, policy=PROFILES["default"], **rest):
    return snapshot(2, loads, policy, in_flight=OpenAction("d", NOW - MINUTE, "merge"), **rest)


def actions(one):
    answer = decide(one)
    return {part.action for part in (answer, *answer.also)}


def test_an_open_merge_holds_no_split():
    assert action(merge_open({0: HOT})) == ("split", 0, "msgRateIn")
    assert action(merge_open({}, trigger="consumer", consumers=stream(3)))[0] == "split"


def test_an_open_merge_holds_other_merges():
    cold = load(COLD, cold_since=NOW - 1000 * MINUTE)
    one = snapshot(8, dict.fromkeys(range(6), cold) | {6: HOT, 7: HOT}, PROFILES["default"])
    assert actions(one) == {"split", "merge"}
    assert actions(replace(one, in_flight=OpenAction("d", NOW - MINUTE, "merge"))) == {"split"}
    resting = decide(replace(one, loads=dict.fromkeys(range(8), cold), in_flight=OpenAction("d", NOW, "merge")))
    assert resting.gate is Gate.IN_FLIGHT


def test_held_split_beside_merge_names_its_gate():
    assert action(merge_open({0: HOT}, replace(PROFILES["default"], max_segments=2))) is Gate.MAX_SEGMENTS


def test_an_open_merge_holds_all_that_is_switched_off():
    assert action(merge_open({0: HOT}, replace(PROFILES["default"], enabled=False))) is Gate.DISABLED


def test_the_pips_guard_is_of_any_open_operation():
    assert action(merge_open({0: HOT}, PIP)) is Gate.IN_FLIGHT


def test_records_of_sealed_segments_do_not_count():
    layout = SegmentLayout.create(1, 0).split_segment(0, 0)
    one = snapshot(layout)
    one = replace(one, loads={**one.loads, 0: HOT})
    assert action(one) is Gate.MERGE_THRESHOLDS
