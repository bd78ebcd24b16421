"""Judge a decision by the live layout. Pure: no I/O, no clock, no memory beyond the arguments.

Stage: under `actor`, before and after every call. Only the decision's own segments count: one evaluation decides on
several disjoint parts of a topic, and each of them changes the layout that the others were decided on. A split took
effect iff the segment is sealed with children that halve its range; a merge iff both are sealed with a common child
that covers their union (PIP-468 "Split Protocol", "Merge Protocol"). Pruning removes sealed segments and their ids from
their relatives. The effect is then looked for among the remaining segments; where they prove nothing, the decision
counts as superseded and is never acted on again.

A rebucket is one decision on several segments, each replaced by a separate call. It is due while any of them is still
active. So a retry after a crash or a fault does only the missing part, and the decision ends when no segment is left.
"""

from collections.abc import Iterable
from typing import Any

from anabranch.executor.autoscale.decision import SegmentDecision
from anabranch.executor.kernel.family import ABSENT, Applied, Gone, StillNeeded, Superseded, Verdict
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import compare_lives
from decisions.topic.segment import Segment

_SHOWN = 8


def judge(decision: SegmentDecision, layout: SegmentLayout | None, may_have_called: bool) -> Verdict:
    """Return what to do about a decision, given the live layout (None: the topic is gone).

    `may_have_called`: a call for this decision may have gone out before this look, from this process or from one that
    left a durable intent. An effect without any such call is not ours.
    """
    if layout is None:
        return Gone("the topic is gone")
    decided = decision.layout
    if _is_another_topic(decided, layout):
        return Superseded("the topic is not the one that was decided on: it was deleted and created again")
    if layout.next_segment_id < decided.next_segment_id:
        return Gone("the layout is older than the one decided on: it comes from a copy that lags, or of another topic")
    if decision.action == "rebucket" and pending_rebuckets(decision, layout):
        return StillNeeded()
    if children := _effect(decision, layout):
        if may_have_called:
            return Applied(children)
        return Superseded(f"somebody else has done the same: its children are {_ids(children)}")
    changed = [i for i in decision.segments if i not in layout.segments or not layout.segments[i].is_active]
    if changed:
        return Superseded(_difference(decision, layout, changed))
    over = _over_cap(decision, len(layout.active))
    return Superseded(over) if over else StillNeeded()


def pending_rebuckets(decision: SegmentDecision, layout: SegmentLayout) -> list[int]:
    """Return the segments of a rebucket that are not replaced yet."""
    return [i for i in decision.segments if i in layout.segments and layout.segments[i].is_active]


def describe(decision: SegmentDecision, layout: SegmentLayout | None) -> dict[str, Any]:
    """Describe a look for the record: epoch, active segments, the decision's segments and children."""
    if layout is None:
        return dict(ABSENT)
    shown = [layout.segments[i] for i in decision.segments if i in layout.segments]
    shown += [child for segment in tuple(shown) for child in _children(segment, layout)]
    return {
        "epoch": layout.epoch,
        "active": len(layout.active),
        "segments": {
            str(segment.segment_id): {
                "state": segment.state.value,
                "range": f"{segment.start:04x}-{segment.end:04x}",
                "children": list(segment.child_ids),
            }
            for segment in shown
        },
        "pruned": [i for i in decision.segments if i not in layout.segments],
    }


def _is_another_topic(decided: SegmentLayout, live: SegmentLayout) -> bool:
    """Return whether the topic is another incarnation, or an id belongs to a different segment now."""
    if None not in (decided.created_at_ms, live.created_at_ms) and decided.created_at_ms != live.created_at_ms:
        return True
    return compare_lives(decided.segments, live.segments) != 0


def _over_cap(decision: SegmentDecision, active: int) -> str | None:
    """Return why the number of active segments, which may have changed, forbids the call, or None."""
    if decision.action == "split":
        cap = decision.max_segments
        return f"the topic has {active} segments, maxSegments is {cap}" if cap is not None and active >= cap else None
    cap = decision.min_segments
    return f"the topic has {active} segments, minSegments is {cap}" if cap is not None and active <= cap else None


def _effect(decision: SegmentDecision, layout: SegmentLayout) -> tuple[int, ...]:
    """Return ids of the children that show the decision's effect; empty if none is visible."""
    targets = [decision.layout.segments[i] for i in decision.segments]
    if decision.action == "rebucket":
        successors = [_successor_of(target, decision, layout) for target in targets]
        return tuple(sorted(successor.segment_id for successor in successors if successor is not None))
    if any(layout.segments[t.segment_id].is_active for t in targets if t.segment_id in layout.segments):
        return ()
    start, end = min(t.start for t in targets), max(t.end for t in targets)
    expected = _halves(start, end) if decision.action == "split" else [(start, end)]
    if not (left := [layout.segments[t.segment_id] for t in targets if t.segment_id in layout.segments]):
        # All pruned, and the children no longer name their parents. Ids are never reused, so walk those allocated since
        # the decision. Segments outside this range belong to other changes, for instance to decisions of the same
        # evaluation: skip them. The next segment belongs to the first change of this range, if any does. Only this
        # decision's call gives exactly these ranges to it and its sibling. A gap of pruned ids proves nothing.
        first = decision.layout.next_segment_id
        while first in layout.segments and not _overlaps(layout.segments[first], start, end):
            first += 1
        expected_children = [layout.segments.get(first + number) for number in range(len(expected))]
        return tuple(
            child.segment_id
            for child, hashes in zip(expected_children, expected, strict=True)
            if child is not None and (child.start, child.end) == hashes
        )
    common = set.intersection(*({child.segment_id for child in _children(segment, layout)} for segment in left))
    children = [layout.segments[i] for i in sorted(common)]
    ours = all(
        (child.start, child.end) in expected and set(child.parent_ids) <= set(decision.segments) for child in children
    )
    return tuple(child.segment_id for child in children) if ours else ()


def _successor_of(target: Segment, decision: SegmentDecision, layout: SegmentLayout) -> Segment | None:
    """Return the segment that shows the rebucket of one of the decision's segments, or None.

    The successor of a pruned segment is the first segment allocated since the decision that overlaps its range.
    """
    if target.segment_id in layout.segments:
        successors = _children(layout.segments[target.segment_id], layout)
    else:
        first = decision.layout.next_segment_id
        while first in layout.segments and not _overlaps(layout.segments[first], target.start, target.end):
            first += 1
        successors = [layout.segments[first]] if first in layout.segments else []
    is_ours = len(successors) == 1 and successors[0].bucket_count == decision.bucket_count
    return successors[0] if is_ours and (successors[0].start, successors[0].end) == (target.start, target.end) else None


def _halves(start: int, end: int) -> list[tuple[int, int]]:
    middle = start + (end - start) // 2
    return [(start, middle), (middle + 1, end)]


def _overlaps(segment: Segment, start: int, end: int) -> bool:
    return segment.start <= end and start <= segment.end


def _children(segment: Segment, layout: SegmentLayout) -> list[Segment]:
    listed = {i for i in segment.child_ids if i in layout.segments}
    listed |= {i for i, other in layout.segments.items() if segment.segment_id in other.parent_ids}
    return [layout.segments[i] for i in sorted(listed)]


def _difference(decision: SegmentDecision, layout: SegmentLayout, changed: list[int]) -> str:
    since = f"since epoch {decision.layout.epoch}"
    untold = [i for i in changed if i not in layout.segments or not _children(layout.segments[i], layout)]
    if untold:
        return (
            f"segments {_ids(untold)} were sealed and pruned {since}, and what is left of the layout at epoch "
            f"{layout.epoch} does not show what sealed them"
        )
    children = {child.segment_id for i in changed for child in _children(layout.segments[i], layout)}
    return f"the layout has changed {since}: no longer active {_ids(changed)}, replaced by {_ids(children)}"


def _ids(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return (", ".join(map(str, ordered[:_SHOWN])) or "none") + more
