"""Closed loop of many topics under many policies: a row for each pair, each in its own time.

Stage: the heart of a simulation; `run` feeds it windows of demand. Topics do not know of each other, so each round
takes every row to the next step at which anything can change for it, and does all of them at once in columns:

    apply       the decisions whose delay has passed: segments split and merge (`applying`)
    consumers   the number of segments that they need from now on
    sample      the loads of segments; significant ones become their load records (`sampling`)
    evaluate    those that may act, by `decisions.autoscale.fleet.decide_fleet` (`evaluating`)
    skip        on to the next step that matters; directly past a change of demand that no filter lets pass

The decisions are those of the job (a test runs the job's engine step by step on the same demand). Skipped steps are
proven idle: a sample matters when a rate leaves the band in which no filter lets it pass, an evaluation when a wait
ends (`decisions.autoscale.next_due`). Steps are those of the demand, from 0; instants are milliseconds.

Until its decisions are applied, a row is in flight and not evaluated. As in the job there is one exception: while only
merges are open, parallel splits may follow. Cooldowns count from the application, which creates the segments.
"""

from collections.abc import Sequence

import numpy as np

from anabranch.simulation.topics.applying import Applier
from anabranch.simulation.topics.evaluating import RowEvaluator
from anabranch.simulation.topics.outcome import Actions
from anabranch.simulation.topics.rows import Event, Rows
from anabranch.simulation.topics.sampling import Sampler
from anabranch.simulation.topics.tally import Tally
from anabranch.simulation.topics.timeline import Floats, Ints
from anabranch.simulation.topics.window import NO_STEP, WindowColumns


class Kernel:
    """The loop over all rows."""

    def __init__(
        self,
        rows: Rows,
        yardstick: Floats,
        tally: Tally,
        *,
        tick_ms: int,
        change_threshold: float,
        delay_steps: int,
        outages: Sequence[tuple[int, int]],
    ) -> None:
        """Make the parts of a step. Each says what its arguments mean."""
        self._rows, self._tally = rows, tally
        self._applier = Applier(rows, tally, delay_steps)
        self._sampler = Sampler(rows, yardstick, change_threshold)
        self._evaluator = RowEvaluator(rows, tick_ms, delay_steps, outages)

    def run(self, window: WindowColumns) -> None:
        """Advance every row to the window's end."""
        self._window, state = window, self._rows
        self._sampler.open_window(window)
        self._consumers = window.consumers_first[state.topic]
        state.next[Event.CONSUMERS] = window.consumers_step[self._consumers]
        while True:
            step = state.next.min(axis=0)
            live = np.flatnonzero(step < window.end)
            if not len(live):
                return
            self._advance(live, step[live])

    def actions(self) -> tuple[Ints, Actions]:
        """Return the row of each decided action, and the actions, in the order in which they were recorded."""
        return self._applier.actions()

    def _advance(self, rows: Ints, step: Ints) -> None:
        """Do the step at which each of some rows has an event."""
        state = self._rows
        due = state.next[:, rows] == step
        is_change_alone = due[Event.CHANGE] & (due.sum(axis=0) == 1)
        if is_change_alone.any():
            is_loud = ~is_change_alone
            is_loud[is_change_alone] = ~self._sampler.skip_quiet_changes(rows[is_change_alone], step[is_change_alone])
            rows, step, due = rows[is_loud], step[is_loud], due[:, is_loud]
            if not len(rows):
                return
        self._tally.account(rows, step)
        now = state.began_at + step * state.step_ms
        if due[Event.APPLY].any():
            self._applier.apply_due(rows[due[Event.APPLY]], now[due[Event.APPLY]], self._window)
        if due[Event.CONSUMERS].any():
            self._count_consumers(rows[due[Event.CONSUMERS]])
        fresh, is_hot = due[Event.APPLY] | due[Event.CHANGE], np.zeros(len(rows), np.bool_)
        if fresh.any():
            is_hot[fresh] = self._sampler.sample(rows[fresh], step[fresh], now[fresh], due[Event.APPLY][fresh])
        state.next[Event.EXTRA, rows[due[Event.EXTRA]]] = NO_STEP
        policy = state.policy[rows]
        is_extra = due[Event.EXTRA] | (is_hot & state.policies.evaluates_at_once[policy])
        self._evaluator.evaluate(rows, step, now, is_extra, due[Event.APPLY] | due[Event.CONSUMERS])
        count = state.count[rows]
        waiting = np.maximum(np.maximum(state.sharing[rows] - state.capacity(rows), state.unshared[rows] - count), 0)
        is_over = self._sampler.is_over[rows]
        self._tally.set(rows, step, count, is_over, waiting, state.policies.max_segments[policy])

    def _count_consumers(self, rows: Ints) -> None:
        state, change = self._rows, self._consumers[rows]
        state.required[rows], state.sharing[rows], state.unshared[rows] = self._window.consumers_required[:, change]
        self._consumers[rows] = change + 1
        state.next[Event.CONSUMERS, rows] = self._window.consumers_step[change + 1]
