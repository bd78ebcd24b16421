"""Assign segments to consumers round robin, sealed parents before children (PIP-468 "Rebalancing").

Pure functions of a layout and a subscription's drained segments: a sealed parent is assigned until the subscription has
drained it, its children only from then on (PIP-468 "Consumer Assignment").
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment

Assignment = Mapping[str, tuple[Segment, ...]]
"""Segments of every consumer by name; with more consumers than segments, some have none."""


def assignable(layout: SegmentLayout, drained: AbstractSet[int]) -> tuple[Segment, ...]:
    """Return the segments that an ordered subscription reads now: undrained, with all ancestors drained.

    A sealed segment is assigned until it is drained; a pruned one counts as drained. PIP-468 assigns active segments
    only, Pulsar 5 checks the parents of active ones. Here every ancestor is checked, because a sealed parent that never
    held a message is drained from the start, while messages of its own parents may not be.
    """
    cleared: set[int] = set()
    segments = []
    # Ids grow along the DAG: parents are always visited before their children.
    for number in sorted(layout.segments):
        segment = layout.segments[number]
        if any(parent in layout.segments and parent not in cleared for parent in segment.parent_ids):
            continue
        if number in drained and not segment.is_active:
            cleared.add(number)
        else:
            segments.append(segment)
    return _in_order(segments)


def replayable(layout: SegmentLayout) -> tuple[Segment, ...]:
    """Return all segments, for a subscription without cursors (CHECKPOINT): its progress is unknown."""
    return _in_order(layout.segments.values())


def assign(segments: Iterable[Segment], consumers: Collection[str]) -> Assignment:
    """Assign segment `k`, ordered by range start, to consumer `k mod n`, ordered by name (PIP-468)."""
    names = sorted(consumers)
    ordered = _in_order(segments)
    return {name: ordered[index :: len(names)] for index, name in enumerate(names)}


def keeping(wanted: Assignment, held: Mapping[str, AbstractSet[int]]) -> Assignment:
    """Return `wanted`, except that each segment kept by a consumer stays with it."""
    keeper = {segment: name for name, segments in held.items() for segment in segments}
    assigned: dict[str, list[Segment]] = {name: [] for name in wanted}
    for name, segments in wanted.items():
        for segment in segments:
            assigned[keeper.get(segment.segment_id, name)].append(segment)
    return {name: _in_order(segments) for name, segments in assigned.items()}


def changed(before: Assignment, after: Assignment) -> Assignment:
    """Return the part of `after` that differs: consumers with another list, and new consumers."""
    return {name: segments for name, segments in after.items() if _ids(before.get(name)) != _ids(segments)}


def _in_order(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    return tuple(sorted(segments, key=lambda segment: (segment.start, segment.end, segment.segment_id)))


def _ids(segments: tuple[Segment, ...] | None) -> list[int] | None:
    return None if segments is None else [segment.segment_id for segment in segments]
