"""A fleet at once: the same answer as `decide` topic by topic, with the binding gate and what was measured at it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from decisions.autoscale.decide import Hold, Merge, Rebucket, Split, decide
from decisions.autoscale.fleet import ASK, GATES, HOLD, NEVER, REASONS, SPLIT, decide_fleet
from decisions.autoscale.fleet_readings import binding_readings
from decisions.autoscale.gates import PRECEDENCE, Gate
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from tests.decisions.packing import pack_snapshots
from tests.decisions.snapshots import COLD, DEFAULT, NOW, PIP, bucket_snapshot, load, random_snapshot, snapshot
from tests.examples import only_first


def answers_of(snapshots):
    """What the fleet says, per snapshot in their order; of a hold with what was measured."""
    fleet, places = pack_snapshots(snapshots)
    answers, found = decide_fleet(fleet), [None] * len(snapshots)
    held = np.flatnonzero(answers.action == HOLD)
    readings = zip(*(column.tolist() for column in binding_readings(fleet.take(held), answers.gate[held])), strict=True)
    reading_of = dict(zip(held.tolist(), readings, strict=True))
    for topic, place in enumerate(places):
        reason = REASONS[answers.reason[topic]]
        if answers.action[topic] == HOLD:
            found[place] = ("hold", GATES[answers.gate[topic]].value, *map(_or_none, reading_of[topic]))
        elif answers.action[topic] == ASK:
            found[place] = None
        elif answers.action[topic] == SPLIT:
            found[place] = ("split", int(answers.segment[topic]), reason)
        else:
            found[place] = ("merge", (int(answers.segment[topic]), int(answers.other[topic])), reason)
    return found


def _or_none(value):
    return None if value == NEVER or value != value else value


def answer_of(one):
    answer = decide(one)
    if isinstance(answer, Hold):
        bound = answer.binding
        return ("hold", answer.gate.value, bound.measured, bound.limit, bound.margin, bound.eligible_at)
    if isinstance(answer, Split):
        return ("split", answer.segment, answer.reason)
    if isinstance(answer, Rebucket):
        return ("rebucket", answer.segments, answer.bucket_count, answer.reason)
    assert isinstance(answer, Merge)
    return ("merge", answer.segments, answer.reason)


@pytest.mark.parametrize("seed", only_first(1, range(10)))
def test_fleet_matches_decide_for_each_topic(seed):
    rng = Random(f"fleet {seed}")
    snapshots = [random_snapshot(rng, guards=number % 3 != 0) for number in range(2_000)]
    found = answers_of(snapshots)
    wanted = [answer_of(one) for one in snapshots]
    told = [all for all in zip(snapshots, wanted, found, strict=True) if all[2] is not None]
    assert [all for all in told if all[1] != all[2]][:1] == []
    asked = [one for one, answer in zip(snapshots, found, strict=True) if answer is None]
    assert all(one.policy.parallel_actions or one.policy.hot_key_splits for one in asked)
    assert len(told) > 0.75 * len(snapshots)


@pytest.mark.parametrize("seed", only_first(1, range(4)))
def test_fleet_with_entry_buckets_answers_as_decide(seed):
    rng = Random(f"fleet with buckets {seed}")
    snapshots = [bucket_snapshot(rng, guards=number % 3 == 0) for number in range(1_000)]
    found, wanted = answers_of(snapshots), [answer_of(one) for one in snapshots]
    told = [all for all in zip(snapshots, wanted, found, strict=True) if all[2] is not None]
    assert [all for all in told if all[1] != all[2]][:1] == []
    assert {"merge-capacity", "entry-buckets"} <= {answer[1] for _, answer, _ in told}
    assert len(told) > 0.4 * len(snapshots)


def test_a_gate_without_its_columns_is_an_error(monkeypatch):
    rows = tuple(replace(row, forbidding=(*row.forbidding, Gate.NOT_THIS_TRIGGER)) for row in PRECEDENCE)
    monkeypatch.setattr("decisions.autoscale.fleet.PRECEDENCE", rows)
    with pytest.raises(KeyError):
        answers_of([snapshot()])


def test_an_empty_fleet_has_no_answers():
    fleet, places = pack_snapshots([])
    assert (len(fleet), len(places), len(decide_fleet(fleet).action)) == (0, 0, 0)


def test_adjacent_columns_need_not_be_hash_neighbours():
    cold_ones = [snapshot(1, {0: load(COLD)}, policy) for policy in (PIP, DEFAULT) for _ in range(5)]
    assert {answer[:2] for answer in answers_of(cold_ones)} == {("hold", "split-thresholds")}


def test_longest_waits_never_overflow():
    forever = replace(
        DEFAULT,
        split_cooldown_ms=(2**63 - 1) * 1000,
        merge_cooldown_ms=(2**63 - 1) * 1000,
        merge_window_ms=(2**63 - 1) * 1000,
        max_load_age_ms=(2**63 - 1) * 1000,
        retry_backoff_ms=(2**63 - 1) * 1000,
    )
    instants = (None, -(2**53), 0, NOW, 2**53)
    snapshots = [
        snapshot(
            2,
            {0: load(rates), 1: load(rates)},
            forever,
            last_split_at=at,
            last_merge_at=at,
            failures=failures,
            failed_at=at,
        )
        for rates in (COLD, (1e9, 0, 0, 0))
        for at in instants
        for failures in (0, 1, 2**31 - 1)
    ]
    wanted = [answer_of(one) for one in snapshots]
    found = answers_of(snapshots)
    assert [one for one, other in zip(found, wanted, strict=True) if one not in (None, other)] == []
    assert found.count(None) < len(found)


def test_blocks_cut_a_large_fleet_without_a_seam(monkeypatch):
    monkeypatch.setattr("decisions.autoscale.fleet.MAX_BLOCK_SEGMENTS", 500)
    rng = Random("seams")
    snapshots = [replace(random_snapshot(rng), policy=PIP) for _ in range(600)]
    assert sum(len(one.layout.active) for one in snapshots) > 2_000
    assert answers_of(snapshots) == [answer_of(one) for one in snapshots]


def test_hot_key_measured_by_segment_width():
    """No random snapshot has as many segments as there are hashes."""
    policy = replace(PIP, skip_unsplittable=True, max_segments=10**6)
    one = snapshot(SegmentLayout.create(HASH_SPACE, 0), {7: load((1e6, 0, 0, 0))}, policy)
    assert answers_of([one]) == [answer_of(one)] == [("hold", "unsplittable", 1.0, 1.0, 0.0, None)]
