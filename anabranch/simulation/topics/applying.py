"""Apply decisions whose delay has passed: segments split, merge and get more entry buckets.

Stage: in the kernel, the first part of a step. What was decided is applied to the columns of segments and to the
lineage, which says whether it takes back an earlier action.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anabranch.simulation.topics.outcome import Actions
from anabranch.simulation.topics.rows import NO_INSTANT, Bools, Event, IntColumn, Open, Rows, kept_depths
from anabranch.simulation.topics.tally import Tally
from anabranch.simulation.topics.timeline import Ints
from anabranch.simulation.topics.window import NO_STEP, WindowColumns
from decisions.autoscale.columns import NEVER, REBUCKET, SPLIT
from decisions.autoscale.past import MAX_REGRETS, regret_ms
from decisions.autoscale.policy_columns import BY_MERGE, BY_SPLIT


class Applier:
    """Applies the decisions of rows, and records them."""

    def __init__(self, rows: Rows, tally: Tally, delay_steps: int) -> None:
        """`delay_steps`: from a decision to its application."""
        count = len(rows.topic)
        self._rows, self._tally, self._delay_steps = rows, tally, delay_steps
        self._decided = np.zeros((5, count), np.int64)
        """What each row applies next, as in `Rows.waiting`."""
        self._slot = np.zeros(count, np.int64)
        """Place of its first segment in its row."""
        self._done: list[tuple[npt.NDArray[Any], ...]] = []

    def apply_due(self, rows: Ints, now: Ints, window: WindowColumns) -> None:
        """Apply the decisions of each row, one after the other."""
        state, self._window = self._rows, window
        state.next[Event.APPLY, rows], state.open[rows] = NO_STEP, Open.IDLE
        waiting = [self._take_due(row, instant) for row, instant in zip(rows.tolist(), now.tolist(), strict=True)]
        for turn in range(max(map(len, waiting), default=0)):
            indices = [index for index, decided in enumerate(waiting) if len(decided) > turn]
            of_turn = rows[indices]
            self._decided[:, of_turn] = np.array([waiting[index][turn] for index in indices]).T
            is_active = self._find_slots(of_turn)
            # A merge that was decided before may have taken the segment away: superseded.
            superseded = of_turn[~is_active]
            self._note(superseded, *np.zeros((2, len(superseded)), np.bool_))
            self._apply_one(of_turn[is_active], now[indices][is_active])

    def actions(self) -> tuple[Ints, Actions]:
        """Return the row of each decided action, and the actions, in the order in which they were recorded."""
        state = self._rows
        for row in sorted(state.waiting):
            for decided in state.waiting.pop(row):
                self._decided[:, row] = decided
                self._note(np.array([row]), *np.zeros((2, 1), np.bool_))
        self._note(np.zeros(0, np.int64), *np.zeros((2, 0), np.bool_))
        rows, action, decided_at, segment, other, reason, is_applied, is_reversal = (
            np.concatenate(column) for column in zip(*self._done, strict=True)
        )
        return rows, Actions(
            state.topic[rows],
            decided_at,
            action.astype(np.int8),
            segment,
            other,
            reason.astype(np.int8),
            is_applied,
            is_reversal,
        )

    def _take_due(self, row: int, now: int) -> list[tuple[int, ...]]:
        """Remove and return the decisions of a row whose delay has passed; schedule the others."""
        state = self._rows
        decided = state.waiting.pop(row, [])
        since = now - self._delay_steps * state.step_ms
        if later := [decision for decision in decided if decision[1] > since]:
            state.waiting[row], state.open[row] = later, Open.IN_FLIGHT
            decided_step = (later[0][1] - state.began_at) // state.step_ms
            state.next[Event.APPLY, row] = decided_step + self._delay_steps
        return decided[: len(decided) - len(later)]

    def _find_slots(self, rows: Ints) -> Bools:
        """Find the current slots of the segments in the decisions; return for each whether it is active."""
        segments, owner = self._rows.segments_of(rows)
        position = np.flatnonzero(self._rows.ints[segments, IntColumn.ID] == self._decided[2, rows][owner])
        self._slot[rows[owner[position]]] = position - self._rows.firsts_of(rows)[owner[position]]
        is_active = np.zeros(len(rows), np.bool_)
        is_active[owner[position]] = True
        return is_active

    def _apply_one(self, rows: Ints, now: Ints) -> None:
        state, action = self._rows, self._decided[0, rows]
        slots = rows * state.room + self._slot[rows]
        fails = (action == SPLIT) & (state.ints[slots, IntColumn.START] == state.ints[slots, IntColumn.END])
        state.failures[rows[fails]] += 1
        state.failed_at[rows[fails]] = now[fails]
        is_rebucket = action == REBUCKET
        if is_rebucket.any():
            self._rebucket(rows[is_rebucket], now[is_rebucket])
        is_done = ~fails & ~is_rebucket
        done, instants = rows[is_done], now[is_done]
        is_reversal = np.zeros(len(rows), np.bool_)
        if len(done):
            state.failures[done], state.failed_at[done] = 0, NEVER
            is_split = self._decided[0, done] == SPLIT
            state.last_split[done[is_split]] = instants[is_split]
            state.last_merge[done[~is_split]] = instants[~is_split]
            is_reversal[is_done] = self._change_layouts(done, instants, is_split)
            self._tally.acted(done, is_split, is_reversal[is_done])
        self._note(rows, is_done | is_rebucket, is_reversal)

    def _rebucket(self, rows: Ints, now: Ints) -> None:
        """Replace a segment of each row by one with more entry buckets, which inherits all but the load."""
        state = self._rows
        state.failures[rows], state.failed_at[rows] = 0, NEVER
        state.last_rebucket[rows], state.has_buckets = now, True
        for row, instant, buckets in zip(rows.tolist(), now.tolist(), self._decided[3, rows].tolist(), strict=True):
            segment, lineage = state.ints[row * state.room + self._slot[row]], state.lineages[row]
            segment[IntColumn.ID] = lineage.rebucket(int(segment[IntColumn.ID]), instant)
            segment[IntColumn.CREATED], segment[IntColumn.BUCKETS] = instant, buckets
            if segment[IntColumn.MADE]:
                segment[IntColumn.HANDED_ON] = max(segment[IntColumn.RETURNED], segment[IntColumn.HANDED_ON], 0)
            segment[IntColumn.MODIFIED : IntColumn.HOT] = NO_INSTANT
            segment[IntColumn.HOT] = 0
            if lineage.prune(instant):
                state.show_depths(row)
        self._tally.rebucketed(rows)

    def _change_layouts(self, rows: Ints, now: Ints, is_split: Bools) -> list[bool]:
        """Split and merge segments; return for each whether it is a reversal."""
        state, slot = self._rows, self._slot[rows]
        state.count[rows] += np.where(is_split, 1, -1)
        after = state.count[rows]
        if after.max() > state.room:
            state.make_room()
        owner = np.repeat(np.arange(len(rows)), after)
        firsts = state.firsts_of(rows)
        position = np.arange(len(owner)) - np.repeat(firsts, after)
        source = position + np.where(position > slot[owner], np.where(is_split, -1, 1)[owner], 0)
        new = rows[owner] * state.room + position
        ints, floats = (column[rows[owner] * state.room + source] for column in (state.ints, state.floats))
        changed = firsts + slot
        olds = state.ints[rows * state.room + slot]
        neighbours = state.ints[rows * state.room + np.minimum(slot + 1, state.room - 1)]
        depths = np.where(
            is_split, kept_depths(olds, now), np.maximum(kept_depths(olds, now), kept_depths(neighbours, now)) + 1
        )
        max_buckets = state.policies.max_buckets[state.policy[rows]]
        reversals, pruned = [], []
        of_each = (rows, changed, now, is_split, depths, max_buckets, olds, neighbours)
        for row, index, instant, splits, depth, most, old, other in zip(
            *(column.tolist() for column in of_each), strict=True
        ):
            lineage = state.lineages[row]
            parents = (old[IntColumn.ID],) if splits else (old[IntColumn.ID], other[IntColumn.ID])
            children = lineage.split(*parents, instant) if splits else (lineage.merge(*parents, instant),)
            reversals.append(lineage.takes_back("split" if splits else "merge", parents, children, instant))
            if lineage.prune(instant):
                pruned.append(row)
            depth_columns = depth, lineage.depth(children[0])
            made = _halves(old, instant) if splits else [_union(old, other, most, instant)]
            for child, (number, (span, past, buckets)) in enumerate(zip(children, made, strict=True), index):
                ints[child, : IntColumn.MODIFIED] = number, *span, *depth_columns, instant, *past
                ints[child, IntColumn.BUCKETS] = buckets
        created = np.concatenate([changed, changed[is_split] + 1])
        ints[created, IntColumn.MODIFIED : IntColumn.HOT] = NO_INSTANT
        ints[created, IntColumn.HOT] = 0
        state.ints[new], state.floats[new] = ints, floats
        state.locate(self._window, new[created], state.topic[rows[owner[created]]])
        for row in pruned:
            state.show_depths(row)
        return reversals

    def _note(self, rows: Ints, is_applied: Bools, is_reversal: Bools) -> None:
        self._done.append((rows, *self._decided[:, rows], is_applied, is_reversal))


_Made = tuple[tuple[int, int], tuple[int, ...], int]
"""A new segment: its range, its past (`IntColumn.MADE` to `FINEST`) and its entry buckets."""


def _halves(old: Sequence[int], now: int) -> list[_Made]:
    middle = old[IntColumn.START] + (old[IntColumn.END] - old[IntColumn.START]) // 2
    buckets = max(1, old[IntColumn.BUCKETS] // 2) if old[IntColumn.BUCKETS] else 0
    return [
        ((start, end), (BY_SPLIT, now, *_after_split(old, end - start + 1, now)), buckets)
        for start, end in ((old[IntColumn.START], middle), (middle + 1, old[IntColumn.END]))
    ]


def _union(old: Sequence[int], other: Sequence[int], max_buckets: int, now: int) -> _Made:
    finest = min(
        segment[IntColumn.FINEST] if segment[IntColumn.MADE] else segment[IntColumn.END] - segment[IntColumn.START] + 1
        for segment in (old, other)
    )
    counts = old[IntColumn.BUCKETS], other[IntColumn.BUCKETS]
    # As `SegmentLayout.merge_segments`: one without entry buckets counts as one, unless both have none.
    buckets = sum(max(1, count) for count in counts) if any(counts) else 0
    regrets = max(old[IntColumn.REGRETS], other[IntColumn.REGRETS])
    span = old[IntColumn.START], other[IntColumn.END]
    back = max(
        0, *(segment[column] for segment in (old, other) for column in (IntColumn.RETURNED, IntColumn.HANDED_ON))
    )
    return span, (BY_MERGE, now, regrets, back, finest), min(buckets, max_buckets)


def _after_split(old: Sequence[int], width: int, now: int) -> tuple[int, int, int]:
    """Return a half's regrets, inherited pause and finest merged width (`past.past_after_layout`)."""
    back = max(old[IntColumn.RETURNED], old[IntColumn.HANDED_ON], 0)
    if not old[IntColumn.MADE] or width < old[IntColumn.FINEST]:
        return 0, back, width
    regrets = old[IntColumn.REGRETS]
    if old[IntColumn.MADE] == BY_MERGE:
        is_regretted = now - old[IntColumn.MADE_AT] <= regret_ms(2 * width)
        regrets = min(regrets + 1, MAX_REGRETS) if is_regretted else max(regrets - 1, 0)
    return regrets, back, old[IntColumn.FINEST]
