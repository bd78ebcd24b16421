"""PIP-483 "Pass 2 — MERGE (lazy, rate-limited)", rule by rule and at every boundary, in the profile `pip-483`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from decisions.autoscale.decide import Hold, Merge, decide
from decisions.autoscale.gates import Gate
from decisions.topic.layout import SegmentLayout
from tests.decisions.snapshots import COLD, MINUTE, NOW, PIP, load, msg_rate, snapshot, stream

MERGED = ("merge", (0, 1))


def action(one):
    answer = decide(one)
    if isinstance(answer, Merge):
        assert answer.reason == "cold"
        return ("merge", answer.segments)
    return answer.gate if isinstance(answer, Hold) else answer


def two_cold(**rest):
    return snapshot(2, {0: load(COLD), 1: load(COLD)}, **rest)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("which", [0, 1])
def test_both_strictly_below_merge_thresholds(number, which):
    limit = PIP.merge_thresholds[number]
    for rate, expected in ((math.nextafter(limit, 0), MERGED), (limit, Gate.MERGE_THRESHOLDS)):
        rates = [0.0] * 4
        rates[number] = rate
        assert action(snapshot(2, {which: load(rates), 1 - which: load((0, 0, 0, 0))})) == expected


@pytest.mark.parametrize(("heats", "shown"), [((0.25, 0.5), (0.5, 0.5, 1)), ((3.0, 2.0), (3.0, -2.0, 0))])
def test_reading_is_of_the_hotter_of_the_pair(heats, shown):
    """Measured in merge thresholds, with the margin that is left."""
    loads = {number: msg_rate(heat * PIP.merge_thresholds[0]) for number, heat in enumerate(heats)}
    (reading,) = [one for one in decide(snapshot(2, loads)).gates if one.gate is Gate.MERGE_THRESHOLDS]
    assert (reading.measured, reading.margin, reading.segment) == shown


def test_a_merge_threshold_of_zero_means_never():
    idle = {0: load((0, 0, 0, 0)), 1: load((0, 0, 0, 0))}
    assert action(snapshot(2, idle)) == MERGED
    assert action(snapshot(2, idle, replace(PIP, merge_bytes_rate_out_threshold=0.0))) is Gate.MERGE_THRESHOLDS


@pytest.mark.parametrize(("ago", "merges"), [(300_001, True), (300_000, True), (299_999, False), (-1, False)])
def test_both_records_must_be_as_old_as_the_window(ago, merges):
    for which in (0, 1):
        one = snapshot(2, {which: load(COLD, NOW - ago), 1 - which: load(COLD)})
        assert action(one) == (MERGED if merges else Gate.MERGE_WINDOW)


def test_window_counts_from_last_record():
    wobbling = load(COLD, NOW - MINUTE, cold_since=NOW - 60 * MINUTE)
    assert action(snapshot(2, {0: wobbling, 1: load(COLD)})) is Gate.MERGE_WINDOW


@pytest.mark.parametrize(
    ("ago", "merges"), [(None, True), (300_001, True), (300_000, True), (299_999, False), (0, False), (-5, False)]
)
def test_merge_waits_for_cooldown_inclusive(ago, merges):
    last = None if ago is None else NOW - ago
    assert action(two_cold(last_merge_at=last)) == (MERGED if merges else Gate.MERGE_COOLDOWN)


def test_a_split_does_not_start_the_merge_cooldown():
    assert action(two_cold(last_split_at=NOW)) == MERGED


@pytest.mark.parametrize(("least", "merges"), [(1, True), (2, False), (3, False)])
def test_merges_stop_at_min_segments(least, merges):
    assert action(two_cold(policy=replace(PIP, min_segments=least))) == (MERGED if merges else Gate.MIN_SEGMENTS)


def test_only_neighbours_merge():
    assert action(snapshot(3, {0: load(COLD), 2: load(COLD)})) is Gate.MERGE_THRESHOLDS


def test_the_last_and_the_first_are_no_neighbours():
    assert action(snapshot(3, {0: load(COLD), 1: load(), 2: load(COLD)})) is Gate.MERGE_THRESHOLDS


def test_coldest_pair_by_sum_of_rates_merges():
    loads = {0: msg_rate(900), 1: msg_rate(50), 2: load((0, 100, 0, 0)), 3: load((0, 860, 0, 0))}
    assert action(snapshot(4, loads)) == ("merge", (1, 2))


def test_equally_cold_pairs_merge_in_hash_order():
    layout = SegmentLayout.create(2, 0).split_segment(0, 0)
    assert action(snapshot(layout, dict.fromkeys((1, 2, 3), load(COLD)))) == ("merge", (2, 3))


def test_a_missing_record_is_no_evidence_of_cold():
    assert action(snapshot(2, {0: load(COLD), 1: None})) is Gate.LOAD_MISSING


def test_a_cold_record_is_trusted_however_old():
    ancient = load(COLD, 0, 0)
    assert action(snapshot(2, {0: ancient, 1: ancient})) == MERGED


def test_a_split_comes_first():
    one = snapshot(3, {0: load(COLD), 1: load(COLD), 2: msg_rate(1e6)})
    assert decide(one).segment == 2


def test_pip_text_merges_despite_consumers():
    assert action(two_cold(consumers=stream(2))) == MERGED


def deep(merges):
    """Two active segments; the lineage of the lower has this many merges."""
    layout = SegmentLayout.create(2, 0)
    for _ in range(merges):
        layout = layout.split_segment(layout.active[0].segment_id, 0)
        layout = layout.merge_segments(layout.active[0].segment_id, layout.active[1].segment_id, 0)
    return layout


@pytest.mark.parametrize(("merges", "goes"), [(0, True), (9, True), (10, False), (11, False)])
def test_a_lineage_at_max_dag_depth_is_merged_no_more(merges, goes):
    layout = deep(merges)
    loads = {segment.segment_id: load(COLD) for segment in layout.active}
    found = action(snapshot(layout, loads))
    assert found == (("merge", tuple(loads)) if goes else Gate.MAX_DAG_DEPTH)


def test_a_lineage_at_max_dag_depth_still_splits():
    layout = deep(12)
    hot = layout.active[0].segment_id
    assert decide(snapshot(layout, {hot: msg_rate(1e6)})).segment == hot


@pytest.mark.parametrize("now", [-(2**53), 2**53])
def test_depth_is_judged_at_any_instant(now):
    cold = {number: load(COLD, -(2**53)) for number in (0, 1)}
    assert action(snapshot(2, cold, now=now)) in (MERGED, Gate.MERGE_WINDOW)


def test_in_pip_483_pruning_gives_the_depth_back():
    layout = deep(10)
    for segment in [one.segment_id for one in layout.segments.values() if not one.is_active]:
        layout = layout.prune_segment(segment)
    loads = {segment.segment_id: load(COLD) for segment in layout.active}
    one = snapshot(layout, loads, merge_depths=dict.fromkeys(loads, 99))
    assert action(one) == ("merge", tuple(loads))


def test_deep_pair_does_not_block_another():
    layout = deep(10).split_segment(1, 0)
    lower, *rest = (segment.segment_id for segment in layout.active)
    loads = {lower: load((0, 0, 0, 0)), **dict.fromkeys(rest, load(COLD))}
    assert action(snapshot(layout, loads)) == ("merge", tuple(rest))
