"""Sample the loads of segments: filter them, and find the next change of demand that matters.

Stage: in the kernel, before an evaluation. For each segment it keeps a band of rates in which no filter lets a sample
pass and no threshold is crossed. Changes of demand that leave all of a row's segments in their bands are skipped.
"""

import numpy as np

from anabranch.simulation.topics.rows import NO_INSTANT, Bools, Event, FloatColumn, IntColumn, Rows
from anabranch.simulation.topics.timeline import Floats, Ints
from anabranch.simulation.topics.window import Bounds, WindowColumns
from decisions.autoscale.clocks import cold_since_after_sample_all, returned_after_sample_all
from decisions.autoscale.significance import accept_causes, any_of_four, are_cold

_FEW, _MANY = 8, 128
"""Changes of a row that are looked through at once, at first and from then on."""
_NEARLY = 1e-12
"""Bands are narrower by this: more than what is lost by multiplying floats."""


class Sampler:
    """Loads of the segments of rows, as the job's filter accepts them."""

    def __init__(self, rows: Rows, yardstick: Floats, change_threshold: float) -> None:
        """`yardstick`: the four rates that a segment of each row can carry, rows x 4."""
        count = len(rows.topic)
        self._rows, self._yardstick, self._threshold = rows, yardstick, change_threshold
        self._which, self._level = np.zeros(count, np.int64), np.ones(count)
        """Profile and level of the demand in force."""
        self.is_over = np.zeros(count, np.bool_)
        """Rows with a segment that carries more than the yardstick."""

    def open_window(self, window: WindowColumns) -> None:
        """Begin with a window of demand."""
        self._window = window
        self._rows.next[Event.CHANGE] = window.begin
        self._which[:] = -1
        segments, owner = self._rows.segments_of(np.arange(len(self._rows.topic)))
        self._rows.locate(window, segments, self._rows.topic[owner])

    def skip_quiet_changes(self, rows: Ints, step: Ints) -> Bools:
        """Skip a change of demand that keeps all rates in their bands; return the rows that could skip it."""
        state, change = self._rows, self._window.in_force(self._rows.topic[rows], step)
        is_other = self._window.changes.which[change] != self._which[rows]
        self._move_on(rows, change, np.zeros(len(rows), np.bool_))
        segments, owner = state.segments_of(rows)
        base, bands = (
            state.floats.take(segments, axis=0)[:, FloatColumn.BASE].copy(),
            state.bands.take(segments, axis=0),
        )
        rates = base * self._level.take(rows).take(owner)[:, None]
        leaves = any_of_four((rates < bands[:, :4]) | (rates > bands[:, 4:]))
        stays: Bools = is_other & ~np.logical_or.reduceat(leaves, state.firsts_of(rows))
        quiet = np.flatnonzero(stays)
        if len(quiet):
            chosen = stays[owner]
            self._find_change(rows[quiet], change[quiet], base[chosen], bands[chosen])
        return stays

    def sample(self, rows: Ints, step: Ints, now: Ints, has_new: Bools) -> Bools:
        """Filter current loads, find the next change that matters, and return rows with new hot samples.

        `has_new`: rows with new segments.
        """
        state, policies = self._rows, self._rows.policies
        change = self._window.in_force(state.topic[rows], step)
        self._move_on(rows, change, has_new)
        is_hot = np.zeros(len(rows), np.bool_)
        segments, owner = state.segments_of(rows)
        # `take` and arrays of their own are several times as fast as indices and views of columns.
        policy = state.policy.take(rows).take(owner)
        ints, floats = state.ints.take(segments, axis=0), state.floats.take(segments, axis=0)
        last, base = floats[:, FloatColumn.LAST].copy(), floats[:, FloatColumn.BASE].copy()
        rates = base * self._level.take(rows).take(owner)[:, None]
        split, merge = policies.split.take(policy, axis=0), policies.merge.take(policy, axis=0)
        has_record = ints[:, IntColumn.MODIFIED] != NO_INSTANT
        codes = accept_causes(last, has_record, rates, self._threshold, policies.crossing.take(policy, axis=0))
        accepted = np.flatnonzero(codes > 0)
        if len(accepted):
            slots, news, instants = segments[accepted], rates.take(accepted, axis=0), now[owner[accepted]]
            is_cold, since = are_cold(news, merge.take(accepted, axis=0)), ints[accepted, IntColumn.COLD]
            last = np.where((codes > 0)[:, None], rates, last)
            state.floats[slots, FloatColumn.LAST] = news
            state.ints[slots, IntColumn.MODIFIED] = instants
            state.ints[slots, IntColumn.RETURNED] = returned_after_sample_all(
                ints[accepted, IntColumn.RETURNED], has_record[accepted], since, is_cold, instants
            )
            state.ints[slots, IntColumn.COLD] = cold_since_after_sample_all(since, is_cold, instants)
            state.ints[slots, IntColumn.HOT] = hot = any_of_four(news > split.take(accepted, axis=0))
            is_hot[owner[accepted[hot]]] = True
        yardstick = self._yardstick.take(rows, axis=0).take(owner, axis=0)
        exceeds = rates > yardstick
        self.is_over[rows] = np.logical_or.reduceat(any_of_four(exceeds), state.firsts_of(rows))
        # The band of each rate in which nothing happens.
        low, high = last * (1 - self._threshold), last * (1 + self._threshold)
        crosses = policies.crosses.take(policy)[:, None]
        limits = [
            (split, last > split, crosses),
            (merge, last >= merge, crosses),
            (yardstick, exceeds, np.ones(1, np.bool_)),
        ]
        if ((written := policies.written.take(policy, axis=0)) != merge).any():
            limits.append((written, last >= written, crosses))
        for limit, is_above, counts in limits:
            # Several times as fast as ufuncs with a mask.
            np.maximum(low, np.where(is_above & counts, limit, -np.inf), out=low)
            np.minimum(high, np.where(is_above | ~counts, np.inf, limit), out=high)
        bands = np.concatenate([low * (1 + _NEARLY), high * (1 - _NEARLY)], axis=1)
        state.bands[segments] = bands
        self._find_change(rows, change, base, bands)
        return is_hot

    def _move_on(self, rows: Ints, change: Ints, has_new: Bools) -> None:
        """Apply the change of demand in force to rows with another profile or with new segments."""
        changes, state = self._window.changes, self._rows
        self._level[rows], which = changes.level[change], changes.which[change]
        again = rows[has_new | (which != self._which[rows])]
        self._which[rows] = which
        if len(again):
            segments, owner = state.segments_of(again)
            # A column's view indexed copies less than whole segments would.
            low, high = (state.ints[:, column][segments] for column in (IntColumn.LOW, IntColumn.HIGH))
            low_part, high_part = (
                state.floats[:, column][segments] for column in (FloatColumn.LOW_PART, FloatColumn.HIGH_PART)
            )
            bounds = Bounds(low, low_part, high, high_part)
            state.floats[segments, FloatColumn.BASE] = self._window.carried(
                state.topic[again][owner], self._which[again][owner], bounds
            )

    def _find_change(self, rows: Ints, change: Ints, base: Floats, bands: Floats) -> None:
        """Find the next change that matters of rows whose segments carry `base` at level 1."""
        changes = self._window.changes
        following = np.minimum(change + 1, len(changes.step) - 1)
        is_other = changes.which[following] != self._which[rows]
        self._rows.next[Event.CHANGE, rows[is_other]] = changes.step[following[is_other]]
        same = np.flatnonzero(~is_other)
        if len(same):
            # The band of the level for which all rates stay in theirs.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                least = np.where(base > 0, bands[:, :4] / base, 0.0).max(axis=1)
                most = np.where(base > 0, bands[:, 4:] / base, np.inf).min(axis=1)
            first = self._rows.firsts_of(rows)
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
            self._rows.next[Event.CHANGE, rows[is_found]] = changes.step[following[is_found, first_hit[is_found]]]
            left = ~is_found
            rows, change, which, least, most = rows[left], change[left] + size, which[left], least[left], most[left]
            size = _MANY
