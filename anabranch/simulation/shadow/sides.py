"""Actions of the other scaler and of ours on the segments of topics; equal ones are paired. Pure.

An action is identified by topic, kind and segments: ids are unique in an incarnation of a topic, and both sides act on
the same layout. An action that we want stays open until the other side does it, one of its segments is gone, or we hold
again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by
from decisions.topic.segment import Segment

Segments = tuple[int, ...]
What = tuple[str, Segments]
"""Kind, `split`, `merge` or `rebucket`, and the ids of its segments, ascending."""
Ending = Literal["open", "withdrawn", "overtaken", "deleted", "superseded", "rejected", "failed"]
"""The last three are the executor's ends of the decision."""


@dataclass(frozen=True)
class Done:
    """Action of the other scaler."""

    topic: str
    action: str
    segments: Segments
    at: int
    """Creation time of the children by the layout, milliseconds since 1970."""
    answer: str | None
    """Our answer at that moment: `same`, `other: …`, or the gate of a hold; None: the segments were unknown to us."""
    looked_at: int | None = None
    """Instant of our answer, milliseconds: our decision after it, else the tick after it."""
    hot_since: int | None = None
    """Instant since which one of its segments was over a split threshold throughout; None: none was."""

    @property
    def what(self) -> What:
        """Kind and segments."""
        return self.action, self.segments


@dataclass(frozen=True)
class WantedAction:
    """Action that we decided, and that our executor did not apply."""

    topic: str
    action: str
    segments: Segments
    at: int
    """Instant at which its first decision was in the lake, milliseconds since 1970."""
    reason: str
    hot_since: int | None = None
    """See `Done.hot_since`."""
    ending: Ending = "open"
    """End of the action, if the other side did not do it."""
    ended_at: int | None = None

    @property
    def what(self) -> What:
        """Kind and segments."""
        return self.action, self.segments


@dataclass(frozen=True)
class Both:
    """Action of both sides that we decided before the other side did it."""

    wanted: WantedAction
    done: Done

    @property
    def lead_ms(self) -> int:
        """Return our lead, milliseconds."""
        return self.done.at - self.wanted.at


def parts_of(action: str, segments: Iterable[int]) -> list[What]:
    """Return the parts of a decision that are done one by one: a rebucket has one per segment."""
    ids = tuple(sorted(segments))
    return [(action, (segment,)) for segment in ids] if action == "rebucket" else [(action, ids)]


SAME = "same"
"""`Done.answer` if we decided the same."""


@dataclass
class Sides:
    """All actions of both sides."""

    both: list[Both] = field(default_factory=list)
    theirs: list[Done] = field(default_factory=list)
    """Actions that we had not decided before."""
    ours: list[WantedAction] = field(default_factory=list)
    """Actions that the other side did not do."""
    parents: dict[tuple[str, int], Segments] = field(default_factory=dict)
    """Parents of each segment, by topic and id."""

    def within(self, since: int, until: int) -> "Sides":
        """Return the actions of a period, milliseconds; a pair belongs to the earlier of its instants."""
        return Sides(
            [pair for pair in self.both if since <= min(pair.wanted.at, pair.done.at) <= until],
            [done for done in self.theirs if since <= done.at <= until],
            [wanted for wanted in self.ours if since <= wanted.at <= until],
            self.parents,
        )

    def all_done(self) -> list[Done]:
        """Return the actions of the other side, in order of time."""
        return sorted([*self.theirs, *(pair.done for pair in self.both)], key=lambda done: done.at)

    def all_wanted(self) -> list[WantedAction]:
        """Return the actions that we wanted, in order of time."""
        return sorted([*self.ours, *(pair.wanted for pair in self.both)], key=lambda wanted: wanted.at)


def actions_in(
    layout: SegmentLayout, before: SegmentLayout | None = None
) -> Iterator[tuple[str, Segments, Segments, int]]:
    """Yield every split, merge and rebucket that a layout shows: kind, segments, children, and instant.

    The instant is in milliseconds since 1970. Pulsar may prune split or merged segments before anybody has seen them
    sealed: then their hash ranges in `before`, the last known layout, reveal the parents of the children.
    """
    by_parents: dict[Segments, list[int]] = {}
    orphans: dict[int, list[Segment]] = {}
    for segment in layout.segments.values():
        if segment.parent_ids and not _lacks_a_parent(segment, layout):
            by_parents.setdefault(tuple(sorted(segment.parent_ids)), []).append(segment.segment_id)
        elif before is not None and segment.segment_id >= before.next_segment_id:
            orphans.setdefault(segment.created_at_epoch, []).append(segment)
    for children in orphans.values():
        if origins := _origins(children, before.active if before is not None else ()):
            by_parents[origins] = [child.segment_id for child in children]
    for parents, ids in by_parents.items():
        created_at = min(layout.segments[child].created_at_ms for child in ids)
        if len(parents) > 1:
            action = "merge"
        else:
            action = made_by(layout.segments[ids[0]], layout.segments) or ("split" if len(ids) > 1 else "rebucket")
        yield action, parents, tuple(sorted(ids)), created_at


def _origins(children: Sequence[Segment], active: Iterable[Segment]) -> Segments:
    """Return the `active` segments whose range some new segments took over; empty if that is unclear."""
    start, end = min(segment.start for segment in children), max(segment.end for segment in children)
    origins = sorted(
        (segment for segment in active if start <= segment.start and segment.end <= end),
        key=lambda segment: segment.start,
    )
    if (len(children), len(origins)) not in ((1, 1), (1, 2), (2, 1)) or (origins[0].start, origins[-1].end) != (
        start,
        end,
    ):
        return ()
    return tuple(sorted(segment.segment_id for segment in origins))


def _lacks_a_parent(segment: Segment, layout: SegmentLayout) -> bool:
    """Return True if the segment was merged from two, and one of them is pruned."""
    alone = layout.segments.get(segment.parent_ids[0]) if len(segment.parent_ids) == 1 else None
    return alone is not None and (segment.start, segment.end) != (
        max(segment.start, alone.start),
        min(segment.end, alone.end),
    )


def reversals(
    actions: Iterable[Done | WantedAction], parents: Mapping[tuple[str, int], Segments], within_ms: int
) -> int:
    """Count the actions of one side that undo an earlier one, such as a merge of a split, within a time."""
    acted: dict[tuple[str, str, Segments], int] = {}
    count = 0
    for action in sorted(actions, key=lambda action: action.at):
        if action.action == "rebucket":
            continue
        opposite = "merge" if action.action == "split" else "split"
        origins = {parents.get((action.topic, segment), ()) for segment in action.segments}
        before = [acted[key] for origin in origins if (key := (action.topic, opposite, origin)) in acted]
        count += any(action.at - earlier <= within_ms for earlier in before)
        acted[action.topic, action.action, action.segments] = action.at
    return count
