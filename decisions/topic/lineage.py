"""Lineage of segments: ancestors, the operation that made each, and merge depth (PIP-468).

Stage: under `decisions.topic.layout`, whose methods answer from here, and under what keeps a topic's state over time
(`engine`, the model check). A DAG is a mapping of segment ids to segments; it has no edges to pruned segments.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from decisions.topic.segment import Segment


def segment_lineage(segments: Mapping[int, Segment], segment_id: int) -> frozenset[int]:
    """Return a segment with all its ancestors and descendants that are still in the DAG.

    PIP-468 "SegmentLayout", getLineage.
    """
    return _reachable_ids(segments, [segment_id], "parent_ids") | _reachable_ids(segments, [segment_id], "child_ids")


def compare_lives(segments: Mapping[int, Segment], other: Mapping[int, Segment]) -> int:
    """Compare two sets of segments by the incarnation of their topic.

    0: `other` has segments of the same incarnation as `segments`. 1 or -1: of one of the same name that was created
    later or earlier, so an id in both names another segment. A created instant of 0 is unknown.
    """
    for number in segments.keys() & other.keys():
        mine, theirs = segments[number], other[number]
        if mine.created_at_ms > 0 and theirs.created_at_ms > 0 and mine.created_at_ms != theirs.created_at_ms:
            return 1 if theirs.created_at_ms > mine.created_at_ms else -1
        if (mine.start, mine.end) != (theirs.start, theirs.end):
            return 1
    return 0


def count_merges(segments: Mapping[int, Segment]) -> dict[int, int]:
    """Return each segment's merge depth as its layout shows it (PIP-483 "Caps", `maxDagDepth`).

    The depth counts the segments with two or more parents among a segment and its ancestors: a union, not the longest
    chain. Pruned ancestors are not counted. All are computed at once: one by one takes half a minute for a layout of 1
    MiB.
    """
    merges: dict[int, int] = {}
    """Of each segment those among it and its ancestors, a bit for each."""
    for circle in _generations_of(segments):
        merge_bits = 0
        for number in circle:
            merge_bits |= (len(segments[number].parent_ids) > 1) << len(merges)
            for parent in segments[number].parent_ids:
                merge_bits |= merges.get(parent, 0)
            merges[number] = 0
        merges.update(dict.fromkeys(circle, merge_bits))
    return {number: merge_bits.bit_count() for number, merge_bits in merges.items()}


def made_by(
    segment: Segment, segments: Mapping[int, Segment] = MappingProxyType({})
) -> Literal["split", "merge", "rebucket"] | None:
    """Return the operation that made a segment, read off its parents; None without parents.

    Two or more parents are a merge, one with the same range a rebucket, one with another range a split. Pulsar rebuilds
    its clocks by the same rule. A segment that lost its parents to pruning counts as none of them, one whose single
    parent is not among the `segments` as a split.
    """
    if not segment.parent_ids:
        return None
    if len(segment.parent_ids) > 1:
        return "merge"
    parent = segments.get(segment.parent_ids[0])
    is_same = parent is not None and (parent.start, parent.end) == (segment.start, segment.end)
    return "rebucket" if is_same else "split"


def _generations_of(segments: Mapping[int, Segment]) -> Iterator[list[int]]:
    """Yield segments in groups, parents first; cycles of a damaged record are one group (Tarjan)."""
    number_of: dict[int, int] = {}
    low: dict[int, int] = {}
    done: set[int] = set()
    path: list[int] = []

    def enter(segment: int) -> tuple[int, Iterator[int]]:
        number_of[segment] = low[segment] = len(number_of)
        path.append(segment)
        return segment, iter([parent for parent in segments[segment].parent_ids if parent in segments])

    for root in segments:
        waiting = [] if root in number_of else [enter(root)]
        while waiting:
            node, parents = waiting[-1]
            for parent in parents:
                if parent not in number_of:
                    waiting.append(enter(parent))
                    break
                if parent not in done:
                    low[node] = min(low[node], number_of[parent])
            else:
                waiting.pop()
                if waiting:
                    child = waiting[-1][0]
                    low[child] = min(low[child], low[node])
                if low[node] == number_of[node]:
                    circle = [path.pop()]
                    while circle[-1] != node:
                        circle.append(path.pop())
                    done.update(circle)
                    yield circle


def _reachable_ids(segments: Mapping[int, Segment], start: Iterable[int], edge: str) -> frozenset[int]:
    seen: set[int] = set()
    waiting = list(start)
    while waiting:
        number = waiting.pop()
        if number not in seen and number in segments:
            seen.add(number)
            waiting.extend(getattr(segments[number], edge))
    return frozenset(seen)
