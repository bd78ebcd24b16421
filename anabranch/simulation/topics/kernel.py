"""Closed loop of many topics under many policies: a row for each pair, each in its own time.

Stage: the heart of a simulation; `run` feeds it windows of demand. Topics do not know of each other, so each round
takes every row to the next step at which anything can change for it, and does all of them at once in columns:

    apply       the decisions whose delay has passed: segments split and merge
    consumers   the number of segments that they need from now on
    sample      the loads of segments; significant ones become their load records
    evaluate    those that may act, by `decisions.autoscale.fleet.decide_fleet`
    skip        on to the next step that matters; directly past a change of demand that no filter lets pass

The decisions are those of the job (a test runs the job's engine step by step on the same demand). Skipped steps are
proven idle: a sample matters when a rate leaves the band in which no filter lets it pass, an evaluation when a wait
ends (`anabranch.simulation.topics.waits`). Steps are those of the demand, from 0; instants are milliseconds.

Until its decisions are applied, a row is in flight and not evaluated. As in the job there is one exception: while only
merges are open, parallel splits may follow. Cooldowns count from the application, which creates the segments.

Longer than other files: all of a step, on the same columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anabranch.simulation.topics.asking import Asked, Shown, TopicClocks, ask
from anabranch.simulation.topics.lineages import Lineage
from anabranch.simulation.topics.outcome import Actions
from anabranch.simulation.topics.tally import Tally
from anabranch.simulation.topics.timeline import Floats, Ints
from anabranch.simulation.topics.waits import (
    BY_MERGE,
    BY_SPLIT,
    NOT_DUE,
    Limits,
    SegmentColumns,
    TopicColumns,
    WaitSituation,
)
from anabranch.simulation.topics.window import NO_STEP, Bounds, WindowColumns
from decisions.autoscale.clocks import (
    Cooldowns,
    cold_since_after_sample_all,
    cooldowns_after_layout,
    returned_after_sample_all,
)
from decisions.autoscale.columns import (
    ANY_ACTION,
    ASK,
    HOLD,
    MERGE,
    NEVER,
    ONLY_SPLIT,
    REBUCKET,
    SPLIT,
    SnapshotColumns,
)
from decisions.autoscale.fleet import decide_fleet
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.past import FORGOTTEN_MS, MAX_REGRETS, depths_after_layout, past_after_layout, regret_ms
from decisions.autoscale.policy import Policy
from decisions.autoscale.significance import accept_causes, are_cold
from decisions.topic.layout import SegmentLayout
from schemas.metadata import MAX_ENTRY_BUCKETS

Bools = npt.NDArray[np.bool_]
CHANGE, CONSUMERS, TICK, EXTRA, APPLY = range(5)
"""Events that a row waits for."""
_IDLE, _MERGES, _IN_FLIGHT = range(3)
"""Decisions of a row that are not applied yet: none, only merges, or others too."""
(
    _ID,
    _START,
    _END,
    _KEPT_DEPTH,
    _DEPTH,
    _CREATED,
    _MADE,
    _MADE_AT,
    _REGRETS,
    _HANDED_ON,
    _FINEST,
    _MODIFIED,
    _COLD,
    _RETURNED,
    _HOT,
    _LOW,
    _HIGH,
    _BUCKETS,
) = range(18)
"""Columns of whole numbers of a segment."""
_LAST, _BASE, _LOW_PART, _HIGH_PART = slice(0, 4), slice(4, 8), 8, 9
"""Columns of floats of a segment: its load record, what it carries at level 1, and where it ends inside slices."""
_NO_INSTANT = -1
_MADE_BY = {"split": BY_SPLIT, "merge": BY_MERGE}
_FEW, _MANY = 8, 128
"""Changes of a row that are looked through at once, at first and from then on."""
_NEARLY = 1e-12
"""Bands are narrower by this: more than what is lost by multiplying floats."""


def _after_split(old: Sequence[int], width: int, now: int) -> tuple[int, int, int]:
    """Return a half's regrets, inherited pause and finest merged width (`past.past_after_layout`)."""
    back = max(old[_RETURNED], old[_HANDED_ON], 0)
    if not old[_MADE] or width < old[_FINEST]:
        return 0, back, width
    regrets = old[_REGRETS]
    if old[_MADE] == BY_MERGE:
        is_regretted = now - old[_MADE_AT] <= regret_ms(2 * width)
        regrets = min(regrets + 1, MAX_REGRETS) if is_regretted else max(regrets - 1, 0)
    return regrets, back, old[_FINEST]


def _buckets_of(layout: SegmentLayout, policy: Policy) -> list[int]:
    """Return the entry buckets of a topic's first segments: its own, or its share of the policy's budget."""
    if layout.has_buckets:
        return [0 if segment.entry_bucket_splits is None else segment.bucket_count for segment in layout.active]
    budget, count = policy.entry_bucket_budget, len(layout.active)
    return [max(1, min(budget // count, MAX_ENTRY_BUCKETS)) if budget > 0 else 0] * count


def _finest(*merged: Sequence[int]) -> int:
    return min(segment[_FINEST] if segment[_MADE] else segment[_END] - segment[_START] + 1 for segment in merged)


class Kernel:
    """All rows; row r is the topic `topic[r]` under `policies[r]`, rows of equal policies side by side."""

    def __init__(
        self,
        layouts: Sequence[SegmentLayout],
        topic: Ints,
        limits: Limits,
        yardstick: Floats,
        tally: Tally,
        *,
        began_at: int,
        step_ms: int,
        tick_ms: int,
        change_threshold: float,
        delay_steps: int = 1,
        outages: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`layouts` by topic; `yardstick`: the four rates that a segment of each row can carry, rows x 4.

        `delay_steps`: from a decision to its application. `outages`: intervals in which the job is down and decides
        nothing, ascending.
        """
        count = len(topic)
        self._topic, self._limits, self._yardstick, self._tally = topic, limits, yardstick, tally
        self._began_at, self._step_ms, self._tick_ms, self._threshold = began_at, step_ms, tick_ms, change_threshold
        self._delay_steps = delay_steps
        self._outages = np.array(outages, np.int64).reshape(-1, 2)
        self._next = np.full((5, count), NO_STEP, np.int64)
        self._next[APPLY] = 0
        self._count = np.array([len(layouts[index].active) for index in topic.tolist()])
        self._required, self._sharing, self._unshared = np.zeros((3, count), np.int64)
        clocks = [cooldowns_after_layout(Cooldowns(), (), layout, began_at) for layout in layouts]
        split, merged, rebucketed = (
            [NEVER if instant is None else instant for instant in column] for column in zip(*clocks, strict=True)
        )
        self._last_split, self._last_merge = np.array(split)[topic], np.array(merged)[topic]
        self._last_rebucket = np.array(rebucketed)[topic]
        self._failures, self._failed_at = np.zeros(count, np.int64), np.full(count, NEVER)
        self._which, self._consumers, self._level = np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count)
        self._is_over = np.zeros(count, np.bool_)
        self._decided = np.zeros((5, count), np.int64)
        """Of what is to be applied next: action, instant, segment, other, reason."""
        self._waiting: dict[int, list[tuple[int, ...]]] = {}
        """By row, all that is to be applied, in the order of the decisions."""
        self._open = np.full(count, _IDLE, np.int8)
        self._hot_keys: dict[int, tuple[HotKey, ...]] = {}
        self._slot = np.zeros(count, np.int64)
        self._done: list[tuple[npt.NDArray[Any], ...]] = []
        self._lineages = [Lineage(layouts[index]) for index in topic.tolist()]
        self._room = 1 << int(self._count.max(initial=1)).bit_length()
        """Places of each row in the columns of segments."""
        self._ints = np.zeros((count * self._room, _BUCKETS + 1), np.int64)
        self._floats = np.zeros((count * self._room, 10))
        self._bands = np.zeros((count * self._room, 8))
        """Of the four rates of a segment: from where to where nothing happens."""
        self._fill(layouts)
        self._has_buckets = bool(self._ints[:, _BUCKETS].any())

    def run(self, window: WindowColumns) -> None:
        """Advance every row to the window's end."""
        self._window = window
        rows = np.arange(len(self._topic))
        self._next[CHANGE] = window.begin
        self._which[:] = -1
        self._consumers = window.consumers_first[self._topic]
        self._next[CONSUMERS] = window.consumers_step[self._consumers]
        segments, owner = self._segments(rows)
        self._locate(segments, self._topic[owner])
        while True:
            step = self._next.min(axis=0)
            live = np.flatnonzero(step < window.end)
            if not len(live):
                return
            self._advance(live, step[live])

    def actions(self) -> tuple[Ints, Actions]:
        """Return the row of each decided action, and the actions, in the order in which they were recorded."""
        nothing = np.zeros(1, np.bool_)
        for row in np.flatnonzero(self._next[APPLY] != NO_STEP).tolist():
            for decided in self._waiting.pop(row, [(HOLD, 0, 0, 0, 0)]):
                self._decided[:, row] = decided
                self._note(np.array([row]), nothing, nothing)
        row, action, decided_at, segment, other, reason, is_applied, is_reversal = (
            np.concatenate(column) for column in zip(*self._done, strict=True)
        )
        return row, Actions(
            self._topic[row],
            decided_at,
            action.astype(np.int8),
            segment,
            other,
            reason.astype(np.int8),
            is_applied,
            is_reversal,
        )

    # A round

    def _advance(self, rows: Ints, step: Ints) -> None:
        due = self._next[:, rows] == step
        is_change_alone = due[CHANGE] & (due.sum(axis=0) == 1)
        if is_change_alone.any():
            is_loud = ~is_change_alone
            is_loud[is_change_alone] = ~self._glide(rows[is_change_alone], step[is_change_alone])
            rows, step, due = rows[is_loud], step[is_loud], due[:, is_loud]
            if not len(rows):
                return
        self._tally.account(rows, step)
        now = self._began_at + step * self._step_ms
        by_event = due[APPLY] | due[CONSUMERS]
        if due[APPLY].any():
            self._apply(rows[due[APPLY]], now[due[APPLY]])
        if due[CONSUMERS].any():
            self._count_consumers(rows[due[CONSUMERS]])
        fresh, is_hot = due[APPLY] | due[CHANGE], np.zeros(len(rows), np.bool_)
        if fresh.any():
            chosen = rows[fresh]
            change = self._window.in_force(self._topic[chosen], step[fresh])
            self._move_on(chosen, change, due[APPLY][fresh])
            is_hot[fresh] = self._sample(chosen, change, now[fresh])
        self._next[EXTRA, rows[due[EXTRA]]] = NO_STEP
        is_tick = now // self._tick_ms != (now - self._step_ms) // self._tick_ms
        self._evaluate(rows, step, now, is_tick, due[EXTRA] | (is_hot & self._limits.evaluates_at_once[rows]), by_event)
        cap = self._limits.max_segments[rows]
        count = self._count[rows]
        waiting = np.maximum(np.maximum(self._sharing[rows] - self._capacity(rows), self._unshared[rows] - count), 0)
        self._tally.set(rows, step, count, self._is_over[rows], waiting, cap)

    # Apply

    def _apply(self, rows: Ints, now: Ints) -> None:
        """Apply the decisions of each row, one after the other."""
        self._next[APPLY, rows], self._open[rows] = NO_STEP, _IDLE
        waiting = [self._take_due(row, instant) for row, instant in zip(rows.tolist(), now.tolist(), strict=True)]
        if not any(waiting):
            self._apply_one(rows, now)
        for turn in range(max(map(len, waiting), default=0)):
            indices = [index for index, decided in enumerate(waiting) if len(decided) > turn]
            of_turn = rows[indices]
            self._decided[:, of_turn] = np.array([waiting[index][turn] for index in indices]).T
            is_active = self._find_slots(of_turn)
            # A merge that was decided before may have taken the segment away: superseded.
            superseded = of_turn[~is_active]
            self._note(superseded, *np.zeros((2, len(superseded)), np.bool_))
            self._apply_one(of_turn[is_active], now[indices][is_active])

    def _take_due(self, row: int, now: int) -> list[tuple[int, ...]]:
        """Remove and return the decisions of a row whose delay has passed; schedule the others."""
        decided = self._waiting.pop(row, [])
        since = now - self._delay_steps * self._step_ms
        later = [decision for decision in decided if decision[1] > since]
        if later:
            self._waiting[row], self._open[row] = later, _IN_FLIGHT
            decided_step = (later[0][1] - self._began_at) // self._step_ms
            self._next[APPLY, row] = decided_step + self._delay_steps
        return decided[: len(decided) - len(later)]

    def _find_slots(self, rows: Ints) -> Bools:
        """Find the current slots of the segments in the decisions; return for each whether it is active."""
        segments, owner = self._segments(rows)
        counts = self._count[rows]
        position = np.flatnonzero(self._ints[segments, _ID] == self._decided[2, rows][owner])
        self._slot[rows[owner[position]]] = position - (np.cumsum(counts) - counts)[owner[position]]
        is_active = np.zeros(len(rows), np.bool_)
        is_active[owner[position]] = True
        return is_active

    def _apply_one(self, rows: Ints, now: Ints) -> None:
        action = self._decided[0, rows]
        slots = rows * self._room + self._slot[rows]
        fails = (action == SPLIT) & (self._ints[slots, _START] == self._ints[slots, _END])
        failed = rows[fails]
        self._failures[failed] += 1
        self._failed_at[failed] = now[fails]
        is_rebucket = action == REBUCKET
        if is_rebucket.any():
            self._rebucket(rows[is_rebucket], now[is_rebucket])
        is_done = (action != HOLD) & ~fails & ~is_rebucket
        done, instants = rows[is_done], now[is_done]
        is_reversal = np.zeros(len(rows), np.bool_)
        if len(done):
            self._failures[done], self._failed_at[done] = 0, NEVER
            is_split = self._decided[0, done] == SPLIT
            self._last_split[done[is_split]] = instants[is_split]
            self._last_merge[done[~is_split]] = instants[~is_split]
            is_reversal[is_done] = self._change_layouts(done, instants, is_split)
            self._tally.acted(done, is_split, is_reversal[is_done])
        decided = action != HOLD
        self._note(rows[decided], (is_done | is_rebucket)[decided], is_reversal[decided])
        self._decided[0, rows] = HOLD

    def _rebucket(self, rows: Ints, now: Ints) -> None:
        """Replace a segment of each row by one with more entry buckets, which inherits all but the load."""
        self._failures[rows], self._failed_at[rows] = 0, NEVER
        self._last_rebucket[rows], self._has_buckets = now, True
        for row, instant, buckets in zip(rows.tolist(), now.tolist(), self._decided[3, rows].tolist(), strict=True):
            segment, lineage = self._ints[row * self._room + self._slot[row]], self._lineages[row]
            segment[_ID] = lineage.rebucket(int(segment[_ID]), instant)
            segment[_CREATED], segment[_BUCKETS] = instant, buckets
            if segment[_MADE]:
                segment[_HANDED_ON] = max(segment[_RETURNED], segment[_HANDED_ON], 0)
            segment[_MODIFIED] = segment[_COLD] = segment[_RETURNED] = _NO_INSTANT
            segment[_HOT] = 0
            if lineage.prune(instant):
                self._show_depths(row)
        self._tally.rebucketed(rows)

    def _show_depths(self, row: int) -> None:
        own_slots = slice(row * self._room, row * self._room + int(self._count[row]))
        self._ints[own_slots, _DEPTH] = [
            self._lineages[row].depth(number) for number in self._ints[own_slots, _ID].tolist()
        ]

    def _capacity(self, rows: Ints) -> Ints:
        """Return the number of consumers that can work: one per entry bucket, or per segment without any."""
        count = self._count[rows]
        if not self._has_buckets:
            return count
        segments, owner = self._segments(rows)
        capacity = np.bincount(owner, np.maximum(self._ints[segments, _BUCKETS], 1), len(rows)).astype(np.int64)
        return np.where(self._limits.rebuckets[rows], capacity, count)

    def _change_layouts(self, rows: Ints, now: Ints, is_split: Bools) -> list[bool]:
        """Split and merge segments; return for each whether it is a reversal."""
        before = self._count[rows]
        self._count[rows] = after = before + np.where(is_split, 1, -1)
        if after.max() > self._room:
            self._make_room()
        slot = self._slot[rows]
        owner = np.repeat(np.arange(len(rows)), after)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(after) - after, after)
        source = position + np.where(position > slot[owner], np.where(is_split, -1, 1)[owner], 0)
        new = rows[owner] * self._room + position
        ints, floats = (column[rows[owner] * self._room + source] for column in (self._ints, self._floats))
        first = np.cumsum(after) - after + slot
        olds = self._ints[rows * self._room + slot]
        neighbours = self._ints[rows * self._room + np.minimum(slot + 1, self._room - 1)]
        kept_depths = self._kept_depths(olds, now), self._kept_depths(neighbours, now)
        taken_back, pruned = [], []
        for number, (row, index, instant, split, old, other, kept_one, kept_other) in enumerate(
            zip(
                rows.tolist(),
                first.tolist(),
                now.tolist(),
                is_split.tolist(),
                olds.tolist(),
                neighbours.tolist(),
                *(depths.tolist() for depths in kept_depths),
                strict=True,
            )
        ):
            lineage = self._lineages[row]
            if split:
                lower, upper = lineage.split(old[_ID], instant)
                back = lineage.takes_back("split", (old[_ID],), (lower, upper), instant)
                middle = old[_START] + (old[_END] - old[_START]) // 2
                if lineage.prune(instant):
                    pruned.append(number)
                depth, guard_depth = lineage.depth(lower), kept_one
                lower_past, upper_past = (
                    (instant, BY_SPLIT, instant, *_after_split(old, width, instant))
                    for width in (middle - old[_START] + 1, old[_END] - middle)
                )
                ints[index, :_MODIFIED] = lower, old[_START], middle, guard_depth, depth, *lower_past
                ints[index + 1, :_MODIFIED] = upper, middle + 1, old[_END], guard_depth, depth, *upper_past
                ints[index : index + 2, _BUCKETS] = max(1, old[_BUCKETS] // 2) if old[_BUCKETS] else 0
            else:
                fresh = lineage.merge(old[_ID], other[_ID], instant)
                back = lineage.takes_back("merge", (old[_ID], other[_ID]), (fresh,), instant)
                if lineage.prune(instant):
                    pruned.append(number)
                depth = lineage.depth(fresh)
                guard_depth = max(kept_one, kept_other) + 1
                past = instant, BY_MERGE, instant, max(old[_REGRETS], other[_REGRETS]), 0, _finest(old, other)
                ints[index, :_MODIFIED] = fresh, old[_START], other[_END], guard_depth, depth, *past
                # As `SegmentLayout.merge_segments`: one without entry buckets counts as one, unless both have none.
                buckets = max(1, old[_BUCKETS]) + max(1, other[_BUCKETS]) if old[_BUCKETS] or other[_BUCKETS] else 0
                ints[index, _BUCKETS] = min(buckets, int(self._limits.max_buckets[row]))
            taken_back.append(back)
        created = np.concatenate([first, first[is_split] + 1])
        ints[created, _MODIFIED] = ints[created, _COLD] = ints[created, _RETURNED] = _NO_INSTANT
        ints[created, _HOT] = 0
        self._ints[new], self._floats[new] = ints, floats
        self._locate(new[created], self._topic[rows[owner[created]]])
        for row in rows[pruned].tolist():
            self._show_depths(row)
        return taken_back

    def _note(self, rows: Ints, is_applied: Bools, is_reversal: Bools) -> None:
        self._done.append((rows, *self._decided[:, rows], is_applied, is_reversal))

    # What is wanted

    def _count_consumers(self, rows: Ints) -> None:
        change = self._consumers[rows]
        self._required[rows], self._sharing[rows], self._unshared[rows] = self._window.consumers_required[:, change]
        self._consumers[rows] = change + 1
        self._next[CONSUMERS, rows] = self._window.consumers_step[change + 1]

    def _move_on(self, rows: Ints, change: Ints, has_new: Bools) -> None:
        """Apply the change of demand in force to rows with another profile or with new segments."""
        changes = self._window.changes
        self._level[rows], which = changes.level[change], changes.which[change]
        again = rows[has_new | (which != self._which[rows])]
        self._which[rows] = which
        if len(again):
            segments, owner = self._segments(again)
            # A column's view indexed copies less than whole segments would.
            low, high = self._ints[:, _LOW][segments], self._ints[:, _HIGH][segments]
            low_part, high_part = self._floats[:, _LOW_PART][segments], self._floats[:, _HIGH_PART][segments]
            bounds = Bounds(low, low_part, high, high_part)
            self._floats[segments, _BASE] = self._window.carried(
                self._topic[again][owner], self._which[again][owner], bounds
            )

    def _glide(self, rows: Ints, step: Ints) -> Bools:
        """Skip a change of demand that keeps all rates in their bands; return the rows that could skip it."""
        change = self._window.in_force(self._topic[rows], step)
        is_other = self._window.changes.which[change] != self._which[rows]
        self._move_on(rows, change, np.zeros(len(rows), np.bool_))
        segments, owner = self._segments(rows)
        first = np.cumsum(self._count[rows]) - self._count[rows]
        base, bands = self._floats.take(segments, axis=0)[:, _BASE], self._bands.take(segments, axis=0)
        rates = base * self._level[rows][owner][:, None]
        leaves = ((rates < bands[:, :4]) | (rates > bands[:, 4:])).any(axis=1)
        stays: Bools = is_other & ~np.logical_or.reduceat(leaves, first)
        chosen = stays[owner]
        quiet = np.flatnonzero(stays)
        if len(quiet):
            begins = np.cumsum(self._count[rows[quiet]]) - self._count[rows[quiet]]
            self._skip(rows[quiet], change[quiet], begins, base[chosen], bands[chosen])
        return stays

    def _sample(self, rows: Ints, change: Ints, now: Ints) -> Bools:
        """Filter current loads, find the next change that matters, and return rows with new hot samples."""
        is_hot = np.zeros(len(rows), np.bool_)
        limits = self._limits
        segments, owner = self._segments(rows)
        first = np.cumsum(self._count[rows]) - self._count[rows]
        policy = limits.of[rows][owner]
        ints, floats = self._ints.take(segments, axis=0), self._floats.take(segments, axis=0)
        last, base = floats[:, _LAST], floats[:, _BASE]
        rates = base * self._level[rows][owner][:, None]
        split, merge = limits.split[policy], limits.merge[policy]
        codes = accept_causes(last, ints[:, _MODIFIED] != _NO_INSTANT, rates, self._threshold, limits.crossing[policy])
        accepted = np.flatnonzero(codes > 0)
        if len(accepted):
            slots, news, instants = segments[accepted], rates[accepted], now[owner[accepted]]
            is_cold = are_cold(news, merge[accepted])
            last[accepted] = news
            self._floats[slots, _LAST] = news
            self._ints[slots, _MODIFIED] = instants
            since = ints[accepted, _COLD]
            self._ints[slots, _RETURNED] = returned_after_sample_all(
                ints[accepted, _RETURNED], ints[accepted, _MODIFIED] != _NO_INSTANT, since, is_cold, instants
            )
            self._ints[slots, _COLD] = cold_since_after_sample_all(since, is_cold, instants)
            self._ints[slots, _HOT] = hot = (news > split[accepted]).any(axis=1)
            is_hot[owner[accepted[hot]]] = True
        yardstick = self._yardstick[rows][owner]
        exceeds = rates > yardstick
        self._is_over[rows] = np.logical_or.reduceat(exceeds.any(axis=1), first)
        # The band of each rate in which nothing happens.
        low, high = last * (1 - self._threshold), last * (1 + self._threshold)
        crosses = limits.crosses[policy][:, None]
        written = limits.written[policy]
        for limit, is_above, counts in (
            (split, last > split, crosses),
            (merge, last >= merge, crosses),
            (written, last >= written, crosses),
            (yardstick, exceeds, np.True_),
        ):
            np.maximum(low, limit, out=low, where=is_above & counts)
            np.minimum(high, limit, out=high, where=~is_above & counts)
        bands = np.concatenate([low * (1 + _NEARLY), high * (1 - _NEARLY)], axis=1)
        self._bands[segments] = bands
        self._skip(rows, change, first, base, bands)
        return is_hot

    def _skip(self, rows: Ints, change: Ints, first: Ints, base: Floats, bands: Floats) -> None:
        """Find the next change that matters of rows whose segments, from `first` on, carry `base` at level 1."""
        changes = self._window.changes
        following = np.minimum(change + 1, len(changes.step) - 1)
        is_other = changes.which[following] != self._which[rows]
        self._next[CHANGE, rows[is_other]] = changes.step[following[is_other]]
        same = np.flatnonzero(~is_other)
        if len(same):
            # The band of the level for which all rates stay in theirs.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                least = np.where(base > 0, bands[:, :4] / base, 0.0).max(axis=1)
                most = np.where(base > 0, bands[:, 4:] / base, np.inf).min(axis=1)
            least = np.maximum.reduceat(least, first)[same] * (1 + _NEARLY)
            most = np.minimum.reduceat(most, first)[same] * (1 - _NEARLY)
            self._look_ahead(rows[same], following[same], least, most)

    def _look_ahead(self, rows: Ints, change: Ints, least: Floats, most: Floats) -> None:
        """Find the change, from `change` on, at which each row's level leaves the band or its profile changes."""
        changes, size, which = self._window.changes, _FEW, self._which[rows]
        end = len(changes.step) - 1
        while len(rows):
            following = np.minimum(change[:, None] + np.arange(size), end)
            level = changes.level[following]
            hits = (changes.which[following] != which[:, None]) | (level < least[:, None]) | (level > most[:, None])
            first_hit = hits.argmax(axis=1)
            is_found = hits[np.arange(len(rows)), first_hit]
            self._next[CHANGE, rows[is_found]] = changes.step[following[is_found, first_hit[is_found]]]
            left = ~is_found
            rows, change, which, least, most = rows[left], change[left] + size, which[left], least[left], most[left]
            size = _MANY

    # Evaluate

    def _evaluate(self, rows: Ints, step: Ints, now: Ints, is_tick: Bools, is_extra: Bools, by_event: Bools) -> None:
        segments, owner = self._segments(rows)
        ints = self._ints.take(segments, axis=0)
        topics = TopicColumns(
            rows,
            now,
            self._count[rows],
            self._required[rows],
            self._last_split[rows],
            self._last_merge[rows],
            self._failures[rows],
            self._failed_at[rows],
        )
        shown = SegmentColumns(
            owner,
            hot=ints[:, _HOT] != 0,
            is_cold=ints[:, _COLD] != _NO_INSTANT,
            is_single=ints[:, _START] == ints[:, _END],
            cold_since=self._limits.window_start(rows[owner], ints[:, _COLD], ints[:, _MODIFIED]),
            shallow_at=self._shallow_at(rows[owner], ints),
            settled_at=self._settled_at(rows[owner], ints),
        )
        situation = WaitSituation(self._limits, topics, shown)
        is_up = self._is_up(now)
        is_tick, is_extra, by_event = is_tick & is_up, is_extra & is_up, by_event & is_up
        by_tick = is_tick | is_extra
        by_consumers = by_event & ~by_tick & situation.demand
        may_act = (by_tick & (situation.may_split | situation.may_merge)) | (by_consumers & situation.may_split)
        before = self._open[rows]
        may_act &= (before == _IDLE) | (self._may_split_meanwhile(rows) & situation.may_split)
        acts = np.zeros(len(rows), np.bool_)
        due_of = np.full(len(rows), NOT_DUE)
        if may_act.any():
            acts[may_act], due_of[may_act] = self._decide(
                rows[may_act], now[may_act], by_tick[may_act], step[may_act], situation.may_split[may_act]
            )
        next_tick = (now // self._tick_ms + 1) * self._tick_ms
        extra = np.full(len(rows), NOT_DUE)
        with_merge = np.minimum(situation.split_due, situation.merge_due)
        for chosen, due in (
            (is_tick & situation.is_urgent & (situation.opens_at < next_tick), with_merge),
            (is_extra & ~is_tick & situation.is_urgent, with_merge),
            (by_consumers & situation.is_urgent, situation.split_due),
        ):
            extra = np.where(chosen, due, extra)
        extra = np.where(due_of < NOT_DUE, due_of, np.where(acts | (before != _IDLE), NOT_DUE, extra))
        asked = (extra > now) & (extra < next_tick)
        self._next[EXTRA, rows[asked]] = self._step_at(extra[asked])
        # The next tick at which it may act, or ask for a tick of its own.
        following = self._tick_from(step + 1)
        merges_at = np.where(situation.merges_at < NOT_DUE, situation.merges_at, now)
        tick = np.where(
            situation.is_urgent | situation.may_split,
            following,
            np.where(
                situation.merges_at < NOT_DUE, np.maximum(self._tick_from(self._step_at(merges_at)), following), NO_STEP
            ),
        )
        meanwhile = np.where(self._may_split_meanwhile(rows) & situation.may_split, following, NO_STEP)
        self._next[TICK, rows] = np.where(self._open[rows] == _IDLE, tick, meanwhile)

    def _is_up(self, now: Ints) -> Bools:
        """Return the rows for whose instant the job is not down."""
        begins, ends = self._outages.T
        is_up: Bools = np.searchsorted(begins, now, "left") == np.searchsorted(ends, now, "right")
        return is_up

    def _may_split_meanwhile(self, rows: Ints) -> Bools:
        """Return the rows in flight that `decide` has to see (`TopicSnapshot.may_split_meanwhile`)."""
        is_seen: Bools = (self._open[rows] == _MERGES) & self._limits.asks[rows]
        return is_seen

    def _kept_depths(self, ints: Ints, now: Ints) -> Ints:
        """Return the current merge depths of segments by the guard (`decisions.autoscale.past.faded_depth`)."""
        stood = np.where(ints[:, _MADE] > 0, np.maximum(now - ints[:, _MADE_AT], 0), 0)
        depths: Ints = np.maximum(ints[:, _KEPT_DEPTH] - stood // FORGOTTEN_MS, 0)
        return depths

    def _shallow_at(self, rows: Ints, ints: Ints) -> Ints:
        """Return the instant from which the depth of segments permits a merge; `rows` by segment."""
        made_at = np.where(ints[:, _MADE] > 0, ints[:, _MADE_AT], NEVER)
        return self._limits.shallow_at(rows, ints[:, _KEPT_DEPTH], ints[:, _DEPTH], made_at)

    def _settled_at(self, rows: Ints, ints: Ints) -> Ints:
        """Return the instant until which segments are not merged; `rows` by segment."""
        pauses = (ints[:, _RETURNED], ints[:, _HANDED_ON])
        origin, made_at, regrets = ints[:, _MADE], ints[:, _MADE_AT], ints[:, _REGRETS]
        return self._limits.settled_at(
            rows, origin, made_at, regrets, pauses, ints[:, _COLD], ints[:, _END] - ints[:, _START] + 1
        )

    def _decide(self, rows: Ints, now: Ints, by_tick: Bools, step: Ints, wants_split: Bools) -> tuple[Bools, Ints]:
        """Decide for rows; return which of them act, and the instants of the extra ticks that they ask for."""
        limits = self._limits
        segments, owner = self._segments(rows)
        ints, counts = self._ints[segments], self._count[rows]
        msg_in, bytes_in, msg_out, bytes_out = np.ascontiguousarray(self._floats[segments, _LAST].T)
        never = np.full(len(rows), NEVER)
        offsets = np.append(0, np.cumsum(counts))
        answers = decide_fleet(
            SnapshotColumns(
                limits.policies,
                np.searchsorted(rows, limits.starts).tolist(),
                offsets,
                now,
                ~by_tick,
                self._required[rows],
                self._last_split[rows],
                self._last_merge[rows],
                never,
                never != NEVER,
                self._failures[rows],
                self._failed_at[rows],
                np.where(self._failures[rows] > 0, ONLY_SPLIT, ANY_ACTION).astype(np.int8),
                ints[:, _ID],
                ints[:, _START] == ints[:, _END],
                (msg_in, bytes_in, msg_out, bytes_out),
                now[owner],
                limits.window_start(rows[owner], ints[:, _COLD], ints[:, _MODIFIED]),
                limits.depth(rows[owner], self._kept_depths(ints, now[owner]), ints[:, _DEPTH]),
                self._shallow_at(rows[owner], ints),
                self._settled_at(rows[owner], ints),
                self._sharing[rows],
                self._unshared[rows],
                ints[:, _BUCKETS],
            )
        )
        is_open = self._open[rows] == _MERGES
        # A split for load that is held may need a tick of its own, which only `decide` tells of these rows.
        waits = (answers.action == HOLD) & limits.asks[rows] & wants_split
        asks = (answers.action == ASK) | is_open | waits
        acts: Bools = (answers.action != HOLD) & ~asks
        due = np.full(len(rows), NOT_DUE)
        columns = (answers.action, now, answers.segment, answers.other, answers.reason)
        for index in np.flatnonzero(acts).tolist():
            self._waiting[int(rows[index])] = [tuple(int(column[index]) for column in columns)]
        merges = answers.action == MERGE
        for index in np.flatnonzero(asks).tolist():
            row, instant = int(rows[index]), int(now[index])
            asked = self._ask(row, instant, bool(by_tick[index]))
            if by_tick[index]:
                self._hot_keys[row] = asked.hot_keys
            acts[index] = bool(asked.actions)
            if asked.actions:
                decided = [(action, instant, *arguments) for action, *arguments in asked.actions]
                self._waiting[row] = [*self._waiting.get(row, []), *decided]
                merges[index] = all(action == MERGE for action, *_ in asked.actions)
            if asked.due is not None:
                due[index] = asked.due
        acting = rows[acts]
        self._open[acting] = np.where(merges[acts], _MERGES, _IN_FLIGHT)
        self._next[APPLY, acting] = np.minimum(self._next[APPLY, acting], step[acts] + self._delay_steps)
        return acts, due

    def _ask(self, row: int, now: int, by_tick: bool) -> Asked:
        """Return the answer of `decide` for a row."""
        segments = slice(row * self._room, row * self._room + int(self._count[row]))
        ints, rates = self._ints[segments], self._floats[segments, _LAST].tolist()
        row_of_segment = np.full(len(ints), row)
        depths = self._limits.depth(row_of_segment, ints[:, _KEPT_DEPTH], ints[:, _DEPTH])
        shown = [
            Shown._make(
                [
                    segment[_ID],
                    segment[_START],
                    segment[_END],
                    depth,
                    *segment[_CREATED:_HOT],
                    tuple(of_one),
                    segment[_BUCKETS],
                ]
            )
            for segment, depth, of_one in zip(ints.tolist(), depths.tolist(), rates, strict=True)
        ]
        policy, keys = self._limits.policies[int(self._limits.of[row])], self._hot_keys.get(row, ())
        consumers = int(self._sharing[row]), int(self._unshared[row])
        columns = (self._last_split, self._last_merge, self._last_rebucket, self._failures, self._failed_at)
        merges_opened = self._waiting[row][0][1] if self._open[row] == _MERGES else NEVER
        clocks = TopicClocks._make([*(int(column[row]) for column in columns), merges_opened])
        return ask(shown, policy, now, by_tick, consumers, clocks, keys)

    def _tick_from(self, step: Ints) -> Ints:
        """Return the first step with a tick, at or after each step."""
        before = self._began_at + (step - 1) * self._step_ms
        return self._step_at((before // self._tick_ms + 1) * self._tick_ms)

    def _step_at(self, instants: Ints) -> Ints:
        """Return the first step at or after an instant."""
        return -(-(instants - self._began_at) // self._step_ms)

    # Columns of segments

    def _segments(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the indices of all segments of some rows, and for each the position of its row."""
        counts = self._count[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        begins = rows * self._room - (np.cumsum(counts) - counts)
        return begins[owner] + np.arange(len(owner)), owner

    def _locate(self, segments: Ints, topic: Ints) -> None:
        bounds = self._window.locate(topic, self._ints[segments, _START], self._ints[segments, _END])
        self._ints[segments, _LOW], self._ints[segments, _HIGH] = bounds.low, bounds.high
        self._floats[segments, _LOW_PART], self._floats[segments, _HIGH_PART] = bounds.low_part, bounds.high_part

    def _fill(self, layouts: Sequence[SegmentLayout]) -> None:
        """Fill the columns with the first segments of topics."""
        depths = [depths_after_layout({}, {}, (), layout, self._began_at) for layout in layouts]
        pasts = [past_after_layout({}, (), layout, self._began_at) for layout in layouts]
        for row, index in enumerate(self._topic.tolist()):
            buckets = _buckets_of(layouts[index], self._limits.policies[int(self._limits.of[row])])
            for slot, segment in enumerate(layouts[index].active):
                past = pasts[index].get(segment.segment_id)
                history = (0, 0, 0, 0, 0)
                if past is not None:
                    history = _MADE_BY[past.made], past.at, past.regrets, past.returned_after, past.finest
                self._ints[row * self._room + slot] = (
                    segment.segment_id,
                    segment.start,
                    segment.end,
                    depths[index][segment.segment_id],
                    self._lineages[row].depth(segment.segment_id),
                    segment.created_at_ms,
                    *history,
                    _NO_INSTANT,
                    _NO_INSTANT,
                    _NO_INSTANT,
                    0,
                    0,
                    0,
                    buckets[slot],
                )

    def _make_room(self) -> None:
        room = 2 * self._room
        for name in ("_ints", "_floats", "_bands"):
            old = getattr(self, name)
            new = np.zeros((len(self._topic), room, old.shape[1]), old.dtype)
            new[:, : self._room] = old.reshape(len(self._topic), self._room, -1)
            setattr(self, name, new.reshape(-1, old.shape[1]))
        self._room = room
