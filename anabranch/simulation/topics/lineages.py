"""Minimal lineage of one simulated topic: ids, merge depths, pruning, and reversals.

Stage: under the kernel, which keeps the active segments in columns. The rules are those of `decisions.topic.layout` and
`decisions.topic.lineage`; a test holds the two against each other. Segments that were sealed an hour ago are pruned
once there are many, as by the controller's housekeeping.
"""

from anabranch.simulation.topics.outcome import REVERSAL_MS
from decisions.topic.layout import SegmentLayout

KEPT_MS = 3_600_000
"""Time for which a sealed segment stays in its layout."""
MOST_SEALED = 64
"""Sealed segments of a topic from which on old ones are pruned."""
_NO_MERGES: frozenset[int] = frozenset()


class Lineage:
    """Segments of a topic and their origins."""

    __slots__ = ("_made", "_merges", "_next", "_parents", "_sealed")

    def __init__(self, layout: SegmentLayout) -> None:
        self._next = max(layout.next_segment_id, max(layout.segments) + 1)
        self._parents = {
            number: tuple(parent for parent in segment.parent_ids if parent in layout.segments)
            for number, segment in layout.segments.items()
        }
        self._sealed = {
            number: segment.sealed_at_ms for number, segment in layout.segments.items() if not segment.is_active
        }
        self._made: dict[tuple[int, ...], tuple[str, int]] = {}
        """Of the segments that an action made: which one, and when."""
        self._merges = self._found_merges()
        """Of each segment: those among it and its ancestors that a merge made."""

    def split(self, segment: int, now: int) -> tuple[int, int]:
        """Split a segment; return the ids of its halves."""
        lower, upper = self._next, self._next + 1
        self._next += 2
        for child in (lower, upper):
            self._parents[child] = (segment,)
            self._merges[child] = self._merges[segment]
        self._sealed[segment] = now
        return lower, upper

    def merge(self, first: int, second: int, now: int) -> int:
        """Merge two segments; return the id of their union."""
        fresh = self._next
        self._next += 1
        self._parents[fresh] = (first, second)
        self._merges[fresh] = self._merges[first] | self._merges[second] | {fresh}
        self._sealed[first] = self._sealed[second] = now
        return fresh

    def rebucket(self, segment: int, now: int) -> int:
        """Replace a segment; return the id of its successor."""
        fresh = self._next
        self._next += 1
        self._parents[fresh], self._merges[fresh] = (segment,), self._merges[segment]
        self._sealed[segment] = now
        return fresh

    def depth(self, segment: int) -> int:
        """Return the merge depth of a segment as the layout shows it."""
        return len(self._merges[segment])

    def takes_back(self, action: str, segments: tuple[int, ...], children: tuple[int, ...], now: int) -> bool:
        """Record an action; return True if it reverses a recent one."""
        before = self._made.pop(tuple(sorted(segments)), None)
        self._made[children] = action, now
        return before is not None and before[0] != action and now - before[1] <= REVERSAL_MS

    def prune(self, now: int) -> bool:
        """Remove segments that were sealed long ago, if there are many; return True if any were removed."""
        if len(self._sealed) <= MOST_SEALED:
            return False
        forgotten = {number for number, sealed_at in self._sealed.items() if sealed_at < now - KEPT_MS}
        if not forgotten:
            return False
        for number in forgotten:
            del self._sealed[number], self._parents[number]
        for number, parents in self._parents.items():
            if not forgotten.isdisjoint(parents):
                self._parents[number] = tuple(parent for parent in parents if parent not in forgotten)
        self._made = {children: done for children, done in self._made.items() if now - done[1] <= REVERSAL_MS}
        self._merges = self._found_merges()
        return True

    def _found_merges(self) -> dict[int, frozenset[int]]:
        # A segment's id is above those of its parents.
        merges_above: dict[int, frozenset[int]] = {}
        for number in sorted(self._parents):
            parents = self._parents[number]
            merges = _NO_MERGES.union(*(merges_above.get(parent, _NO_MERGES) for parent in parents))
            merges_above[number] = merges | {number} if len(parents) > 1 else merges
        return merges_above
