"""State of the kernel's rows, in columns: what its parts read and change.

Stage: under the kernel. A row is a topic under a policy; rows of equal policies are adjacent. The segments of row r are
at `r * room` and the following places, in the order of their ranges.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anabranch.simulation.topics.lineages import Lineage
from anabranch.simulation.topics.timeline import Ints
from anabranch.simulation.topics.window import NO_STEP, WindowColumns
from decisions.autoscale.clocks import Cooldowns, cooldowns_after_layout
from decisions.autoscale.columns import NEVER
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.next_due import faded_depths
from decisions.autoscale.past import depths_after_layout, past_after_layout
from decisions.autoscale.policy import Policy
from decisions.autoscale.policy_columns import BY_MERGE, BY_SPLIT, PolicyColumns
from decisions.topic.layout import SegmentLayout
from schemas.metadata import MAX_ENTRY_BUCKETS

Bools = npt.NDArray[np.bool_]
NO_INSTANT = -1
_MADE_BY = {"split": BY_SPLIT, "merge": BY_MERGE}


class Event:
    """Events that a row waits for."""

    CHANGE, CONSUMERS, TICK, EXTRA, APPLY = range(5)


class Open:
    """Decisions of a row that are not applied yet: none, only merges, or others too."""

    IDLE, MERGES, IN_FLIGHT = range(3)


class IntColumn:
    """Whole numbers of a segment: itself, its past, its load record, its place among slices; buckets."""

    ID, START, END, KEPT_DEPTH, DEPTH, CREATED = range(6)
    MADE, MADE_AT, REGRETS, HANDED_ON, FINEST = range(6, 11)
    MODIFIED, COLD, RETURNED, HOT = range(11, 15)
    LOW, HIGH, BUCKETS = range(15, 18)


class FloatColumn:
    """Floats of a segment: its load record, what it carries at level 1, where it ends inside slices."""

    LAST, BASE, LOW_PART, HIGH_PART = slice(0, 4), slice(4, 8), 8, 9


class Rows:
    """All rows; row r is the topic `topic[r]` under the policy `policy[r]`."""

    def __init__(
        self,
        layouts: Sequence[SegmentLayout],
        topic: Ints,
        policy: Ints,
        policies: PolicyColumns,
        began_at: int,
        step_ms: int,
    ) -> None:
        """`layouts` by topic; `policy`: indices in `policies`, ascending."""
        count = len(topic)
        self.topic, self.policy, self.policies = topic, policy, policies
        self.began_at, self.step_ms = began_at, step_ms
        self.next = np.full((5, count), NO_STEP, np.int64)
        self.next[Event.APPLY] = 0
        self.required, self.sharing, self.unshared = np.zeros((3, count), np.int64)
        clocks = [cooldowns_after_layout(Cooldowns(), (), layout, began_at) for layout in layouts]
        self.last_split, self.last_merge, self.last_rebucket = (
            np.array([NEVER if instant is None else instant for instant in column])[topic]
            for column in zip(*clocks, strict=True)
        )
        self.failures, self.failed_at = np.zeros(count, np.int64), np.full(count, NEVER)
        self.open = np.full(count, Open.IDLE, np.int8)
        self.waiting: dict[int, list[tuple[int, ...]]] = {}
        """By row, all that is to be applied, in the order of the decisions: action, instant, segment, other, reason."""
        self.hot_keys: dict[int, tuple[HotKey, ...]] = {}
        self.lineages = [Lineage(layouts[index]) for index in topic.tolist()]
        self.count = np.array([len(layouts[index].active) for index in topic.tolist()])
        """Active segments."""
        self.room = 1 << int(self.count.max(initial=1)).bit_length()
        self.ints = np.zeros((count * self.room, IntColumn.BUCKETS + 1), np.int64)
        self.floats = np.zeros((count * self.room, 10))
        self.bands = np.zeros((count * self.room, 8))
        """Of the four rates of a segment: from where to where nothing happens."""
        self._fill(layouts)
        self.has_buckets = bool(self.ints[:, IntColumn.BUCKETS].any())

    def step_at(self, instants: Ints) -> Ints:
        """Return the first step at or after an instant."""
        return -(-(instants - self.began_at) // self.step_ms)

    def segments_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the indices of all segments of some rows, and for each the position of its row."""
        counts = self.count[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        begins = rows * self.room - (np.cumsum(counts) - counts)
        return begins[owner] + np.arange(len(owner)), owner

    def slots_of(self, row: int) -> slice:
        """Return the places of a row's segments."""
        return slice(row * self.room, row * self.room + int(self.count[row]))

    def firsts_of(self, rows: Ints) -> Ints:
        """Return the position of each row's first segment among those of all these rows."""
        firsts: Ints = np.cumsum(self.count[rows]) - self.count[rows]
        return firsts

    def capacity(self, rows: Ints) -> Ints:
        """Return the number of consumers that can work: one per entry bucket, or per segment without any."""
        count = self.count[rows]
        if not self.has_buckets:
            return count
        segments, owner = self.segments_of(rows)
        capacity = np.bincount(owner, np.maximum(self.ints[segments, IntColumn.BUCKETS], 1), len(rows)).astype(np.int64)
        return np.where(self.policies.rebuckets[self.policy[rows]], capacity, count)

    def locate(self, window: WindowColumns, segments: Ints, topic: Ints) -> None:
        """Set the positions of segments among the slices of their topics."""
        bounds = window.locate(topic, self.ints[segments, IntColumn.START], self.ints[segments, IntColumn.END])
        self.ints[segments, IntColumn.LOW], self.ints[segments, IntColumn.HIGH] = bounds.low, bounds.high
        self.floats[segments, FloatColumn.LOW_PART], self.floats[segments, FloatColumn.HIGH_PART] = (
            bounds.low_part,
            bounds.high_part,
        )

    def show_depths(self, row: int) -> None:
        """Set the merge depths that the layout of a row shows, after it was pruned."""
        slots, lineage = self.slots_of(row), self.lineages[row]
        self.ints[slots, IntColumn.DEPTH] = [
            lineage.depth(number) for number in self.ints[slots, IntColumn.ID].tolist()
        ]

    def make_room(self) -> None:
        """Double the places of each row."""
        room = 2 * self.room
        for name in ("ints", "floats", "bands"):
            old = getattr(self, name)
            new = np.zeros((len(self.topic), room, old.shape[1]), old.dtype)
            new[:, : self.room] = old.reshape(len(self.topic), self.room, -1)
            setattr(self, name, new.reshape(-1, old.shape[1]))
        self.room = room

    def _fill(self, layouts: Sequence[SegmentLayout]) -> None:
        """Fill the columns with the first segments of topics."""
        depths = [depths_after_layout({}, {}, (), layout, self.began_at) for layout in layouts]
        pasts = [past_after_layout({}, (), layout, self.began_at) for layout in layouts]
        for row, index in enumerate(self.topic.tolist()):
            slots = self.slots_of(row)
            for slot, segment in enumerate(layouts[index].active, slots.start):
                past = pasts[index].get(segment.segment_id)
                history = (0, 0, 0, 0, 0)
                if past is not None:
                    history = _MADE_BY[past.made], past.at, past.regrets, past.returned_after, past.finest
                self.ints[slot, : IntColumn.MODIFIED] = (
                    segment.segment_id,
                    segment.start,
                    segment.end,
                    depths[index][segment.segment_id],
                    self.lineages[row].depth(segment.segment_id),
                    segment.created_at_ms,
                    *history,
                )
            self.ints[slots, IntColumn.MODIFIED : IntColumn.HOT] = NO_INSTANT
            self.ints[slots, IntColumn.BUCKETS] = _buckets_of(layouts[index], self.policies.policies[self.policy[row]])


def _buckets_of(layout: SegmentLayout, policy: Policy) -> list[int]:
    """Return the entry buckets of a topic's first segments: its own, or its share of the policy's budget."""
    if layout.has_buckets:
        return [0 if segment.entry_bucket_splits is None else segment.bucket_count for segment in layout.active]
    budget, count = policy.entry_bucket_budget, len(layout.active)
    return [max(1, min(budget // count, MAX_ENTRY_BUCKETS)) if budget > 0 else 0] * count


def kept_depths(ints: Ints, now: Ints) -> Ints:
    """Return the current merge depths of segments by the guard `explicitLineage`."""
    return faded_depths(ints[:, IntColumn.KEPT_DEPTH], ints[:, IntColumn.MADE_AT], now)
