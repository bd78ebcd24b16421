"""Segments to consumers, round robin (PIP-468 "Rebalancing"), and sealed parents before their children.

Stage: the rule under `controller.sessions.coordinator`. Pure functions of a layout and of what a subscription drained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment

Assignment = Mapping[str, tuple[Segment, ...]]
"""The segments of every consumer, by its name; with more consumers than segments, some have none."""


def assignable(layout: SegmentLayout, drained: AbstractSet[int]) -> tuple[Segment, ...]:
    """The segments that an ordered subscription reads now: those it has not drained and whose ancestors it has.

    A sealed segment is handed out itself until it is drained; a pruned one counts as drained. PIP-468 hands out active
    segments only, Pulsar 5 asks the parents of active ones. Here every ancestor is asked, because a sealed parent that
    never held a message is drained from the start, while what was written before it may not be.
    """
    cleared: set[int] = set()
    found = []
    # Ids grow along the DAG: a parent is always looked at before its children.
    for number in sorted(layout.segments):
        segment = layout.segments[number]
        if any(parent in layout.segments and parent not in cleared for parent in segment.parent_ids):
            continue
        if number in drained and not segment.is_active:
            cleared.add(number)
        else:
            found.append(segment)
    return _in_order(found)


def replayable(layout: SegmentLayout) -> tuple[Segment, ...]:
    """The segments of a subscription without cursors (CHECKPOINT): all, since nobody can say what is drained."""
    return _in_order(layout.segments.values())


def assign(segments: Iterable[Segment], consumers: Collection[str]) -> Assignment:
    """Segment `k` of the order of range starts goes to consumer `k mod n` of the order of names (PIP-468)."""
    names = sorted(consumers)
    ordered = _in_order(segments)
    return {name: ordered[place :: len(names)] for place, name in enumerate(names)}


def keeping(wanted: Assignment, kept: Mapping[str, AbstractSet[int]]) -> Assignment:
    """`wanted`, except that a segment that somebody keeps, by consumer, is nobody else's."""
    keeper = {segment: name for name, segments in kept.items() for segment in segments}
    found: dict[str, list[Segment]] = {name: [] for name in wanted}
    for name, segments in wanted.items():
        for segment in segments:
            found[keeper.get(segment.segment_id, name)].append(segment)
    return {name: _in_order(segments) for name, segments in found.items()}


def changed(before: Assignment, after: Assignment) -> Assignment:
    """The part of `after` that differs: consumers whose list is another one, and consumers that are new."""
    return {name: segments for name, segments in after.items() if _ids(before.get(name)) != _ids(segments)}


def _in_order(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    return tuple(sorted(segments, key=lambda segment: (segment.start, segment.end, segment.segment_id)))


def _ids(segments: tuple[Segment, ...] | None) -> list[int] | None:
    return None if segments is None else [segment.segment_id for segment in segments]
