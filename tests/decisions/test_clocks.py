"""The clocks and the merge depth between evaluations: each rule at its boundary, and columns equal to one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale import clocks
from decisions.autoscale.clocks import Cooldowns, Failures, OpenDecision
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by
from tests.decisions import single_samples

TWO = SegmentLayout.create(2, 100)
NOW = 1_000
OPEN = OpenDecision("d", 3, 500, "split")


def test_manual_operations_set_their_cooldowns():
    split = TWO.split_segment(0, 300)
    after = clocks.cooldowns_after_layout(Cooldowns(), TWO.segments, split, NOW)
    assert after == Cooldowns(300, None)
    merged = split.merge_segments(2, 3, 400)
    assert clocks.cooldowns_after_layout(after, split.segments, merged, NOW) == Cooldowns(300, 400)


def test_first_layout_sets_clocks_to_newest_segments():
    layout = TWO.split_segment(0, 300).split_segment(1, 250).merge_segments(2, 3, 270)
    assert clocks.cooldowns_after_layout(Cooldowns(), (), layout, NOW) == Cooldowns(300, 270)


def test_cooldown_never_recedes_or_in_future():
    for created, expected in ((299, 300), (300, 300), (301, 301), (NOW, NOW), (NOW + 1, NOW)):
        after = clocks.cooldowns_after_layout(Cooldowns(300), TWO.segments, TWO.split_segment(0, created), NOW)
        assert after == Cooldowns(expected)


def test_pruning_and_creation_set_no_clock():
    split = TWO.split_segment(0, 300)
    assert clocks.cooldowns_after_layout(Cooldowns(5, 6), split.segments, split.prune_segment(0), NOW) == (5, 6, None)
    assert clocks.cooldowns_after_layout(Cooldowns(), (), TWO, NOW) == Cooldowns()


def test_segment_origin_is_split_merge_or_neither():
    layout = TWO.split_segment(0, 1).merge_segments(2, 3, 2)
    assert [made_by(layout.segments[number]) for number in range(5)] == [None, None, "split", "split", "merge"]


@pytest.mark.parametrize(
    ("applied", "epoch", "is_open"), [(False, 9, True), (True, 2, True), (True, 3, True), (True, 4, False)]
)
def test_newer_layout_closes_applied_decision(applied, epoch, is_open):
    decision = replace(OPEN, applied=applied)
    assert clocks.is_done(decision, epoch, ()) == (not is_open)


def test_each_decision_closed_by_its_own_layout():
    decision = replace(OPEN, applied=True, segments=(4, 5))
    assert not clocks.is_done(decision, OPEN.epoch + 1, {4, 5, 8})
    assert not clocks.is_done(decision, OPEN.epoch + 1, {5, 8})
    assert clocks.is_done(decision, OPEN.epoch + 2, {8, 9})


@pytest.mark.parametrize(
    ("status", "epoch", "after"),
    [
        ("applied", None, replace(OPEN, applied=True)),
        ("applied", 3, replace(OPEN, applied=True)),
        ("applied", 4, None),
        ("failed", 3, None),
        ("rejected", 3, None),
        ("superseded", None, None),
        ("observed", 3, None),
    ],
)
def test_outcome_closes_decision_once_layout_is_here(status, epoch, after):
    assert clocks.open_after_outcome(OPEN, status, epoch) == after


def test_failures_grow_until_a_decision_is_applied():
    once = clocks.failures_after_outcome(Failures(), "split", "failed", 7)
    twice = clocks.failures_after_outcome(once, "merge", "rejected", 8)
    assert (once, twice) == ((1, 7, "split"), (2, 8, "merge"))
    assert clocks.failures_after_outcome(twice, "merge", "applied", 9) == Failures()


def test_superseded_decision_is_no_failure():
    once = Failures(1, 7, "split")
    assert clocks.failures_after_outcome(once, "split", "superseded", 9) == once


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=8))
def test_absence_is_one_failure_per_evaluation(evaluations):
    """Each evaluation comes some time after the last end, takes some decisions, and each of them ends at its own."""
    failures, now = Failures(), 0
    for wait, decisions in evaluations:
        now += wait
        decided_at = now
        for _ in range(decisions):
            now += 1
            failures = clocks.failures_after_absence(failures, decided_at, now)
    assert failures.in_a_row == len(evaluations)
    assert failures.action is None


def test_cold_since_starts_and_ends_with_samples():
    assert single_samples.cold_since_after_sample(None, True, 5) == 5
    assert single_samples.cold_since_after_sample(5, True, 6) == 5
    assert single_samples.cold_since_after_sample(5, False, 6) is None


instants = st.none() | st.integers(0, 9)
samples = st.lists(st.tuples(instants, st.booleans(), st.integers(0, 9)), min_size=1, max_size=20)


def column(values):
    return np.array([clocks.NEVER if value is None else value for value in values], np.int64)


@given(samples)
def test_clocks_in_columns_equal_clocks_one_by_one(rows):
    before, cold, at = (list(values) for values in zip(*rows, strict=True))
    columns = column(before), np.array(cold, np.bool_), column(at)
    for one, all_of_them in (
        (single_samples.cold_since_after_sample, clocks.cold_since_after_sample_all),
        (single_samples.cold_since_after_thresholds, clocks.cold_since_after_thresholds_all),
    ):
        assert all_of_them(*columns).tolist() == column(map(one, before, cold, at)).tolist()
    for one, all_of_them in (
        (single_samples.seen_after_sample, clocks.seen_after_sample_all),
        (single_samples.modified_after_sample, clocks.modified_after_sample_all),
    ):
        assert all_of_them(columns[0], columns[2]).tolist() == column(map(one, before, at)).tolist()


@given(st.lists(st.tuples(instants, st.booleans(), instants, st.booleans(), st.integers(0, 9)), min_size=1))
def test_pauses_in_columns_equal_pauses_one_by_one(rows):
    before, known, since, cold, at = (list(values) for values in zip(*rows, strict=True))
    columns = column(before), np.array(known, np.bool_), column(since), np.array(cold, np.bool_), column(at)
    expected = column(map(single_samples.returned_after_sample, before, known, since, cold, at))
    assert clocks.returned_after_sample_all(*columns).tolist() == expected.tolist()


MINUTES = 60_000
TOLD = clocks.MAX_CLOCK_SKEW_MS


@pytest.mark.parametrize(
    ("sampled_at", "kafka_at", "expected"),
    [
        (9_000, 10_000, 9_000),
        (10_000 - TOLD, 10_000, 10_000 - TOLD),
        (10_000 - TOLD - 1, 10_000, 10_000 - TOLD),
        (10_000 + TOLD + 1, 10_000, 10_000 + TOLD),
        (20_001, 20_000, 20_000),
        (3, None, 3),
        (90_000, None, 20_000),
    ],
)
def test_sample_time_bounded_by_kafka_and_now(sampled_at, kafka_at, expected):
    """The reporter's time counts within seconds of Kafka's and never after now."""
    assert single_samples.instant_of_sample(sampled_at, kafka_at, 20_000) == expected


def test_fast_clock_tolerated_briefly_slow_accepted():
    ahead = single_samples.claim_of_sample(10_000 + 4 * MINUTES, 10_000, 10_000)
    assert ahead == 10_000 + TOLD
    assert single_samples.is_stale_sample(ahead, 11_000, 11_000, True, ahead, 10_000)
    assert not single_samples.is_stale_sample(ahead + 1, 16_000, 16_000, True, ahead, 10_000)
    assert not single_samples.is_stale_sample(10_001, 10_001, 10_001, False, ahead, 10_000)
    behind = 10_000_000 - 10 * MINUTES
    assert single_samples.is_stale_sample(behind, 10_000_000, 10_000_000, False, 9_999_000, 9_999_000)
    assert not single_samples.is_stale_sample(
        behind, 10_000_000, 10_000_000, False, 1, 10_000_000 - clocks.MAX_DELIVERY_MS
    )


instants = st.integers(0, 20 * MINUTES)


@given(st.lists(st.tuples(instants, instants | st.none(), st.booleans(), instants, instants), max_size=20), instants)
def test_column_samples_dated_like_single_ones(rows, now):
    sampled, kafka, same, claimed, seen = zip(*rows, strict=True) if rows else ((),) * 5
    taken = [clocks.NEVER if at is None else at for at in kafka]
    columns = [np.array(column, np.int64) for column in (sampled, taken, claimed, seen)]
    assert clocks.instants_of_samples(*columns[:2], now).tolist() == [
        single_samples.instant_of_sample(at, at_kafka, now) for at, at_kafka, *_ in rows
    ]
    assert clocks.claims_of_samples(*columns[:2], now).tolist() == [
        single_samples.claim_of_sample(at, at_kafka, now) for at, at_kafka, *_ in rows
    ]
    stale = clocks.are_stale_samples(*columns[:2], now, np.array(same, np.bool_), *columns[2:])
    assert stale.tolist() == [single_samples.is_stale_sample(at, at_kafka, now, *rest) for at, at_kafka, *rest in rows]


@pytest.mark.parametrize("status", ["observed", "superseded"])
def test_observed_or_superseded_is_no_failure(status):
    before = Failures(2, 300, "split")
    assert clocks.failures_after_outcome(before, "split", status, NOW) == before
    assert clocks.failures_after_outcome(Failures(), "split", status, NOW) == Failures()
