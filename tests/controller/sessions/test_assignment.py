"""Round robin and the order of parents and children, on layouts with any history."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.sessions.assignment import assign, assignable, changed, replayable
from decisions.topic.layout import SegmentLayout
from tests.controller.layout_strategies import ancestors, drained_layouts, layouts, sealed_ids

names = st.sets(st.text(min_size=1, max_size=4), max_size=12)
Drained = tuple[SegmentLayout, frozenset[int]]


@given(drained_layouts(), names)
def test_assignable_segment_has_one_owner(state: Drained, consumers: set[str]) -> None:
    segments = assignable(*state)
    owned = [segment for share in assign(segments, consumers).values() for segment in share]
    assert sorted(owned, key=lambda one: one.segment_id) == (
        sorted(segments, key=lambda one: one.segment_id) if consumers else []
    )


@given(drained_layouts(), names)
def test_consumers_listed_with_fair_shares(state: Drained, consumers: set[str]) -> None:
    shares = assign(assignable(*state), consumers)
    assert shares.keys() == consumers
    sizes = [len(share) for share in shares.values()]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(layouts(), names)
def test_segment_k_goes_to_consumer_k_mod_n(layout: SegmentLayout, consumers: set[str]) -> None:
    shares = assign(layout.active, consumers)
    order = sorted(consumers)
    for place, segment in enumerate(layout.active if order else ()):
        assert segment in shares[order[place % len(order)]]


@given(drained_layouts(), names, st.randoms(use_true_random=False))
def test_input_order_does_not_matter(state: Drained, consumers: set[str], chance: random.Random) -> None:
    segments, mixed = list(assignable(*state)), sorted(consumers)
    expected = assign(segments, consumers)
    chance.shuffle(segments)
    chance.shuffle(mixed)
    assert assign(segments, mixed) == expected
    assert changed(expected, assign(segments, mixed)) == {}


@given(drained_layouts(), names, names)
def test_diff_turns_old_assignment_into_new(state: Drained, before: set[str], after: set[str]) -> None:
    old, new = assign(assignable(*state), before), assign(assignable(*state), after)
    difference = changed(old, new)
    assert {**{name: share for name, share in old.items() if name in after}, **difference} == new
    assert all(old.get(name) != share for name, share in difference.items())


@given(drained_layouts())
def test_segment_waits_for_drained_ancestors(state: Drained) -> None:
    layout, drained = state
    for segment in assignable(layout, drained):
        assert ancestors(layout, segment) <= drained
        assert segment.is_active or segment.segment_id not in drained


@given(drained_layouts())
def test_active_segments_covered_by_assignment(state: Drained) -> None:
    layout, drained = state
    handed_out = {segment.segment_id for segment in assignable(layout, drained)}
    for active in layout.active:
        assert handed_out & (ancestors(layout, active) | {active.segment_id})


@given(layouts(), st.randoms(use_true_random=False))
def test_draining_leads_from_roots_to_active(layout: SegmentLayout, chance: random.Random) -> None:
    drained: set[int] = set()
    while sealed := [one for one in assignable(layout, drained) if not one.is_active]:
        drained.add(chance.choice(sealed).segment_id)
    assert drained == set(sealed_ids(layout))
    assert assignable(layout, drained) == layout.active


@given(layouts(), st.randoms(use_true_random=False))
def test_pruned_segments_count_as_drained(layout: SegmentLayout, chance: random.Random) -> None:
    gone = sealed_ids(layout)
    chance.shuffle(gone)
    for number in gone:
        layout = layout.prune_segment(number)
    assert assignable(layout, frozenset()) == layout.active


def test_drained_empty_parent_keeps_children_behind_root() -> None:
    layout = SegmentLayout.create(1, 0).split_segment(0, 1).split_segment(1, 2)  # 0 -> 1, 2; 1 -> 3, 4
    assert [one.segment_id for one in assignable(layout, {1})] == [0]
    assert [one.segment_id for one in assignable(layout, {0})] == [1, 2]
    assert [one.segment_id for one in assignable(layout, {0, 1})] == [3, 4, 2]


def test_a_merged_segment_waits_for_both_parents() -> None:
    layout = SegmentLayout.create(2, 0).merge_segments(0, 1, 1)
    assert [one.segment_id for one in assignable(layout, {0})] == [1]
    assert [one.segment_id for one in assignable(layout, {0, 1})] == [2]


def test_checkpoint_reads_sealed_and_active() -> None:
    layout = SegmentLayout.create(1, 0).split_segment(0, 1)
    assert [one.segment_id for one in replayable(layout)] == [1, 0, 2]
