"""The depth of a lineage by the guard `explicitLineage`, and merges that nothing freezes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.decide import Hold, Merge, decide, next_due
from decisions.autoscale.gates import Gate
from decisions.autoscale.past import Past, depths_after_layout, past_after_layout
from decisions.topic.layout import SegmentLayout
from tests.decisions.model import World, small_policy
from tests.decisions.snapshots import COLD, DEFAULT, MINUTE, NOW, PIP, SECOND, load, snapshot
from tests.examples import examples

HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Remembered:
    """The depths of one topic as the job keeps them: layouts come, and what they no longer hold is remembered."""

    def __init__(self, layout):
        self.layout, self.depths, self.pasts = layout, {}, {}
        self.come(layout, ())

    def come(self, layout, known=None):
        known = self.layout.segments if known is None else known
        now = max(one.created_at_ms for one in layout.segments.values())
        self.depths = depths_after_layout(self.depths, self.pasts, known, layout, now)
        self.pasts = past_after_layout(self.pasts, known, layout, now)
        self.layout = layout

    def prune(self):
        layout = self.layout
        for number in [one.segment_id for one in layout.segments.values() if not one.is_active]:
            layout = layout.prune_segment(number)
        self.come(layout)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 3 * HOUR), st.booleans()), max_size=40))
def test_depth_independent_of_pruning_and_rebuild(moves):
    layout = SegmentLayout.create(2, 0)
    kept, pruned, now = Remembered(layout), Remembered(layout), 0
    for merges, place, pause, prunes in moves:
        now += pause
        for of in (kept, pruned):
            active = of.layout.active
            place %= len(active)
            if merges and place + 1 < len(active):
                pair = (active[place].segment_id, active[place + 1].segment_id)
                of.come(of.layout.merge_segments(*pair, now))
            elif not merges:
                of.come(of.layout.split_segment(active[place].segment_id, now))
        if prunes:
            pruned.prune()
    assert kept.depths == pruned.depths == Remembered(kept.layout).depths
    assert {one.segment_id for one in kept.layout.active} == kept.depths.keys()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=40))
def test_depth_is_longest_chain_of_merges(moves):
    layout, chain = SegmentLayout.create(4, NOW), dict.fromkeys(range(4), 0)
    for merges, place in moves:
        active = layout.active
        place %= len(active)
        if merges and place + 1 < len(active):
            one, two = active[place].segment_id, active[place + 1].segment_id
            chain[layout.next_segment_id] = max(chain[one], chain[two]) + 1
            layout = layout.merge_segments(one, two, NOW)
        elif not merges:
            chain[layout.next_segment_id] = chain[layout.next_segment_id + 1] = chain[active[place].segment_id]
            layout = layout.split_segment(active[place].segment_id, NOW)
    assert Remembered(layout).depths == {one.segment_id: chain[one.segment_id] for one in layout.active}


def deep(depth, made_at, **rest):
    """Two cold neighbours, the first of them so deep when it was made."""
    loads = {number: load(COLD, seen_at=made_at + DAY) for number in (0, 1)}
    pasts = {0: Past(made_at, "merge"), 1: Past(made_at, "merge")}
    return snapshot(2, loads, DEFAULT, merge_depths={0: depth, 1: 0}, pasts=pasts, **rest)


def depth_reading(answer):
    (reading,) = [one for one in answer.gates if one.gate is Gate.MAX_DAG_DEPTH]
    return reading


def test_shallowest_of_deep_pairs_says_when():
    loads = {number: load(COLD, seen_at=NOW + MINUTE) for number in range(3)}
    pasts = {number: Past(NOW, "merge") for number in range(3)}
    depths = {0: 12, 1: 0, 2: 10}
    held = decide(snapshot(3, loads, DEFAULT, merge_depths=depths, pasts=pasts, now=NOW + MINUTE))
    assert depth_reading(held).eligible_at == NOW + HOUR


def test_cap_of_zero_is_never_passed():
    held = decide(replace(deep(1, NOW, now=NOW + MINUTE), policy=replace(DEFAULT, max_dag_depth=0)))
    assert (held.gate, depth_reading(held).eligible_at) == (Gate.MAX_DAG_DEPTH, None)


@pytest.mark.parametrize(("depth", "hours"), [(10, 1), (12, 3), (33, 24)])
def test_deep_pair_told_when_to_merge_and_merges(depth, hours):
    held = decide(deep(depth, NOW, now=NOW + MINUTE))
    assert (held.gate, depth_reading(held).eligible_at) == (Gate.MAX_DAG_DEPTH, NOW + hours * HOUR)
    due = next_due(held)
    assert due == NOW + hours * HOUR
    assert isinstance(decide(deep(depth, NOW, now=due)), Merge)
    assert decide(deep(depth, NOW, now=due - 1)).gate is Gate.MAX_DAG_DEPTH


def test_pip_text_and_zero_cap_wait_for_nothing():
    none = replace(DEFAULT, max_dag_depth=0)
    layout = SegmentLayout.create(3, 0).merge_segments(0, 1, 0)
    loads = {number: load(COLD) for number in (2, 3)}
    for policy in (none, replace(PIP, max_dag_depth=1)):
        held = decide(snapshot(layout, loads, policy))
        assert (held.gate, next_due(held)) == (Gate.MAX_DAG_DEPTH, None)


BUSY, IDLE, DAYS, STEP = 450.0, 0.0, 30, 5 * MINUTE


@examples(6)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([BUSY, 30.0, IDLE]), st.sampled_from([BUSY, IDLE]), st.sampled_from([30, 90, 240, 1500])
        ),
        min_size=5,
        max_size=400,
    ),
    st.booleans(),
    st.booleans(),
)
def test_lasting_cold_pair_merges_within_30_days(moves, prunes, chases):
    """An adversary sets the demand of both halves of the key space for some time; then all is idle."""
    quick = {"settle_ms": MINUTE, "merge_window_ms": MINUTE, "merge_cooldown_ms": MINUTE} if chases else {}
    policy = small_policy("default", 8, max_dag_depth=3, **quick)
    world = World(policy, SegmentLayout.create(1, 0), (IDLE, IDLE), prune=prunes).reported()
    changes = iter(moves)
    until = 0
    while world.now < DAYS * DAY:
        if world.now >= until:
            left, right, minutes = next(changes, (IDLE, IDLE, DAYS * 1440))
            until = world.now + minutes * MINUTE
            world = replace(world, demand=(left, right)).reported()
        answer = decide(world.snapshot())
        active = world.layout.active
        for one, two in pairwise(active):
            since = [world.records[segment.segment_id][2] for segment in (one, two)]
            if None in since or world.now - max(since) <= DAY + HOUR:
                continue
            # Neighbours that are merged with others go first.
            acts = not isinstance(answer, Hold)
            assert acts or world.now < (next_due(answer) or 0) <= world.now + DAY, (answer, world.now)
        step = STEP if until > world.now + STEP else max(until - world.now, SECOND)
        if isinstance(answer, Hold) and len(active) == 1 and world.demand == (IDLE, IDLE):
            step = max(until - world.now, step)
        world = replace(world.applied(answer), now=world.now + step).reported()
    assert len(world.layout.active) == 1 or world.demand != (IDLE, IDLE)
