"""The verdict about a decision, from layouts alone."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_segment

from anabranch.executor.autoscale.decision import SegmentDecision
from anabranch.executor.autoscale.judge import describe, judge
from anabranch.executor.kernel.family import Applied, Gone, StillNeeded, Superseded
from decisions.topic.layout import SegmentLayout
from tests.executor.orders import decision

NOW = 1_763_660_000_000
TWO = SegmentLayout.create(2, NOW)


def test_unchanged_layout_is_acted_on():
    """Regardless of whether a call may have been sent."""
    for split_or_merge in (decision(TWO, 0), decision(TWO, 0, 1)):
        assert judge(split_or_merge, TWO, may_have_called=False) == StillNeeded()
        assert judge(split_or_merge, TWO, may_have_called=True) == StillNeeded()


def test_visible_split_after_possible_call_is_applied():
    assert judge(decision(TWO, 0), TWO.split_segment(0, NOW), may_have_called=True) == Applied((2, 3))


def test_visible_split_before_any_call_is_foreign():
    verdict = judge(decision(TWO, 0), TWO.split_segment(0, NOW), may_have_called=False)
    assert isinstance(verdict, Superseded)
    assert "somebody else has done the same" in verdict.why


def test_visible_merge_applied_in_any_parent_order():
    for merged in (TWO.merge_segments(0, 1, NOW), TWO.merge_segments(1, 0, NOW)):
        assert judge(decision(TWO, 0, 1), merged, may_have_called=True) == Applied((2,))


@pytest.mark.parametrize("may_have_called", [False, True])
def test_other_segments_change_leaves_decision_due(may_have_called: bool):
    four = SegmentLayout.create(4, NOW)
    for changed in (four.split_segment(3, NOW), four.merge_segments(2, 3, NOW), four.merge_segments(2, 3, NOW + 1)):
        assert judge(decision(four, 0), changed, may_have_called) == StillNeeded()
        assert judge(decision(four, 0, 1), changed, may_have_called) == StillNeeded()


def test_a_merge_whose_neighbour_was_split_is_due():
    four = SegmentLayout.create(4, NOW)
    assert (
        judge(decision(four, 1, 2), four.split_segment(0, NOW).split_segment(3, NOW), may_have_called=False)
        == StillNeeded()
    )


def test_superseded_error_names_segments_and_successors():
    verdict = judge(decision(TWO, 0), TWO.merge_segments(0, 1, NOW), may_have_called=False)
    assert verdict == Superseded("the layout has changed since epoch 0: no longer active 0, replaced by 2")


EIGHT = SegmentLayout.create(8, NOW)
SIBLINGS = [decision(EIGHT, *ids) for ids in ((0,), (1,), (2, 3), (4,), (5, 6), (7,))]
"""Decisions of one evaluation, on disjoint parts of one layout."""


@given(st.permutations(SIBLINGS), st.data())
def test_decisions_of_one_evaluation_in_any_order(order: list[SegmentDecision], data: st.DataObject):
    layout = EIGHT
    for one in order:
        assert judge(one, layout, data.draw(st.booleans())) == StillNeeded()
        layout = apply(one, layout)
        assert isinstance(judge(one, layout, may_have_called=True), Applied)
    for parent in data.draw(st.permutations(range(8))):
        layout = layout.prune_segment(parent)
        for one in order:
            children = judge(one, layout, may_have_called=True)
            assert isinstance(children, Applied), "the children lie next to each other in the order of the calls"
            ranges = {(layout.segments[i].start, layout.segments[i].end) for i in children.shown_by}
            assert ranges == ranges_after(one)


def test_pruned_gap_in_ids_proves_no_effect():
    first, second = decision(EIGHT, 0), decision(EIGHT, 4)
    layout = apply(second, apply(first, EIGHT))
    for pruned in (0, 4):
        layout = layout.prune_segment(pruned)
    assert judge(second, layout, may_have_called=True) == Applied((10, 11))
    without = layout.split_segment(8, NOW).prune_segment(8)
    verdict = judge(second, without, may_have_called=True)
    assert isinstance(verdict, Superseded)
    assert "does not show what sealed them" in verdict.why


def apply(decided: SegmentDecision, layout: SegmentLayout) -> SegmentLayout:
    """The layout after the decision's call."""
    if decided.action == "split":
        return layout.split_segment(decided.segments[0], NOW)
    return layout.merge_segments(*decided.segments, NOW)


def ranges_after(decided: SegmentDecision) -> set[tuple[int, int]]:
    """The ranges that a decision on `EIGHT` leads to, whose segments have 0x2000 hashes each."""
    start = decided.segments[0] * 0x2000
    if decided.action == "split":
        return {(start, start + 0xFFF), (start + 0x1000, start + 0x1FFF)}
    return {(start, start + 0x3FFF)}


@pytest.mark.parametrize(
    ("segments", "others", "caps", "verdict"),
    [
        ((0,), (3,), {"max_segments": 6}, StillNeeded),
        ((0,), (3,), {"max_segments": 5}, Superseded),
        ((0, 1), (2, 3), {"min_segments": 2}, StillNeeded),
        ((0, 1), (2, 3), {"min_segments": 3}, Superseded),
    ],
)
def test_cap_reached_by_others_holds(segments, others, caps, verdict):
    four = SegmentLayout.create(4, NOW)
    decided = replace(decision(four, *segments), **caps)
    assert isinstance(judge(decided, apply(decision(four, *others), four), may_have_called=False), verdict)


def test_other_incarnation_supersedes():
    decided = decision(replace(TWO, created_at_ms=NOW), 0)
    assert judge(decided, replace(TWO, created_at_ms=NOW), may_have_called=False) == StillNeeded()
    assert judge(decided, TWO, may_have_called=False) == StillNeeded()
    verdict = judge(decided, replace(TWO, created_at_ms=NOW + 1), may_have_called=True)
    assert isinstance(verdict, Superseded)
    assert "created again" in verdict.why


def test_effect_beside_other_change_is_applied():
    layout = TWO.split_segment(1, NOW).split_segment(0, NOW)
    assert judge(decision(TWO, 0), layout, may_have_called=True) == Applied((4, 5))


def test_merge_of_segment_to_split_supersedes():
    assert isinstance(judge(decision(TWO, 0), TWO.merge_segments(0, 1, NOW), may_have_called=True), Superseded)


def test_split_of_segment_to_merge_supersedes():
    assert isinstance(judge(decision(TWO, 0, 1), TWO.split_segment(0, NOW), may_have_called=True), Superseded)


def test_merges_with_others_are_not_this_merge():
    four = SegmentLayout.create(4, NOW)
    layout = four.merge_segments(0, 1, NOW).merge_segments(2, 3, NOW)
    assert isinstance(judge(decision(four, 1, 2), layout, may_have_called=True), Superseded)


def test_merge_with_a_successor_is_not_this_merge():
    """Somebody has replaced a segment by one of the same range, and merged that: pruning leaves one parent of ours."""
    replaced = TWO.rebucket_segment(1, 4, NOW)
    layout = replaced.merge_segments(0, 2, NOW).prune_segment(1)
    assert isinstance(judge(decision(TWO, 0, 1), layout, may_have_called=True), Superseded)


def test_epoch_moved_by_pruning_changes_nothing():
    before = TWO.split_segment(0, NOW)
    after = before.prune_segment(0)
    assert after.epoch > before.epoch
    assert judge(decision(before, 2), after, may_have_called=False) == StillNeeded()


def test_a_topic_that_is_not_there_is_gone():
    assert judge(decision(TWO, 0), None, may_have_called=True) == Gone("the topic is gone")


@pytest.mark.parametrize(
    "live",
    [SegmentLayout.create(2, NOW + 1), SegmentLayout.create(3, NOW), SegmentLayout.create(1, NOW)],
    ids=["same segments, born later", "other ranges", "fewer segments"],
)
def test_recreated_topic_supersedes(live: SegmentLayout):
    verdict = judge(decision(TWO, 0), live, may_have_called=True)
    assert isinstance(verdict, Superseded)
    assert "created again" in verdict.why


def test_layout_older_than_decision_polled_again():
    later = TWO.split_segment(0, NOW)
    assert isinstance(judge(decision(later, 1), TWO, may_have_called=False), Gone)


def test_unknown_creation_instant_is_same_topic():
    assert judge(decision(SegmentLayout.create(2, 0), 0), TWO, may_have_called=False) == StillNeeded()


def test_a_split_shows_when_the_parent_is_pruned():
    layout = TWO.split_segment(0, NOW).prune_segment(0)
    assert judge(decision(TWO, 0), layout, may_have_called=True) == Applied((2, 3))


def test_split_visible_by_one_child_despite_pruning():
    layout = TWO.split_segment(0, NOW).split_segment(2, NOW).prune_segment(2)
    assert judge(decision(TWO, 0), layout, may_have_called=True) == Applied((3,))
    assert judge(decision(TWO, 0), layout.prune_segment(0), may_have_called=True) == Applied((3,))


def test_merge_visible_with_pruned_parents():
    merged = TWO.merge_segments(0, 1, NOW)
    assert judge(decision(TWO, 0, 1), merged.prune_segment(0), may_have_called=True) == Applied((2,))
    assert judge(decision(TWO, 0, 1), merged.prune_segment(0).prune_segment(1), may_have_called=True) == Applied((2,))


def test_undecidable_after_pruning_is_superseded():
    layout = TWO.split_segment(0, NOW).split_segment(2, NOW).split_segment(3, NOW)
    for pruned in (2, 3):
        layout = layout.prune_segment(pruned)
    for left in (layout, layout.prune_segment(0)):
        verdict = judge(decision(TWO, 0), left, may_have_called=True)
        assert isinstance(verdict, Superseded)
        assert "does not show what sealed them" in verdict.why


def test_off_middle_children_are_another_split():
    split = TWO.split_segment(0, NOW)
    lower, upper = split.segments[2], split.segments[3]
    moved = {2: replace_segment(lower, end=lower.end - 1), 3: replace_segment(upper, start=upper.start - 1)}
    layout = replace(split, segments=MappingProxyType({**split.segments, **moved}))
    assert isinstance(judge(decision(TWO, 0), layout, may_have_called=True), Superseded)


def test_observation_names_segments_children_and_pruned():
    seen = describe(decision(TWO, 0, 1), TWO.merge_segments(0, 1, NOW).prune_segment(1))
    assert seen["segments"]["0"] == {"state": "SEALED", "range": "0000-7fff", "children": [2]}
    assert seen["segments"]["2"]["state"] == "ACTIVE"
    assert (seen["pruned"], seen["active"]) == ([1], 1)


class Walk:
    """Changes of a layout that remember whether they made the effect of a decision."""

    def __init__(self, layout: SegmentLayout, decided: SegmentDecision | None = None) -> None:
        self.layout, self.decided, self.had_effect, self.is_untouched = layout, decided, False, True

    def step(self, data: st.DataObject) -> None:
        """One random split, merge or prune, where possible one that concerns the decision."""
        active, sealed = self.layout.active, [s for s in self.layout.segments.values() if not s.is_active]
        kind = data.draw(st.sampled_from(["split", "merge", "prune"]))
        if kind == "prune" and sealed:
            self.layout = self.layout.prune_segment(data.draw(st.sampled_from(sealed)).segment_id)
        elif kind == "merge" and len(active) > 1:
            at = data.draw(st.integers(0, len(active) - 2))
            self._note("merge", active[at].segment_id, active[at + 1].segment_id)
            self.layout = self.layout.merge_segments(active[at].segment_id, active[at + 1].segment_id, NOW)
        elif kind == "split" and (wide := [s for s in active if s.width > 1]):
            chosen = data.draw(st.sampled_from(wide)).segment_id
            self._note("split", chosen)
            self.layout = self.layout.split_segment(chosen, NOW)

    def _note(self, action: str, *segments: int) -> None:
        if self.decided and set(segments) & set(self.decided.segments):
            self.is_untouched = False
        if self.decided and action == self.decided.action and set(segments) == set(self.decided.segments):
            self.had_effect = True


@given(st.data())
def test_verdict_matches_truth_on_every_walk(data: st.DataObject):
    before = Walk(SegmentLayout.create(data.draw(st.integers(1, 4)), NOW))
    for _ in range(data.draw(st.integers(0, 6))):
        before.step(data)
    active = before.layout.active
    first = data.draw(st.integers(0, len(active) - 1))
    merges = len(active) > 1 and data.draw(st.booleans())
    first = min(first, len(active) - 2) if merges else first
    decided = decision(before.layout, *(segment.segment_id for segment in active[first : first + (2 if merges else 1)]))

    walk = Walk(before.layout, decided)
    for _ in range(data.draw(st.integers(0, 6))):
        walk.step(data)
        verdict = judge(decided, walk.layout, may_have_called=True)
        assert isinstance(verdict, StillNeeded) == walk.is_untouched
        if isinstance(verdict, Applied):
            assert walk.had_effect
        if walk.had_effect and all(segment in walk.layout.segments for segment in decided.segments):
            children = {i for s in decided.segments for i in walk.layout.segments[s].child_ids}
            assert isinstance(verdict, Applied) == bool(children)
        if not walk.had_effect:
            assert not isinstance(judge(decided, walk.layout, may_have_called=False), Applied)
