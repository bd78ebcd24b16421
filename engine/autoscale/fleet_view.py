"""A bucket's topics in columns, kept between ticks, for `decisions.autoscale.fleet`.

Stage: under `engine.autoscale.evaluation`; a tick evaluates every topic. Changed topics, found by generation, are
rebuilt at the tick, or before it if there are many, as when a fleet's layouts arrive or its state has just been
decoded. Loads are gathered by row at each tick.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decisions.autoscale.columns import GATES, HOLD, NEVER, Bools, Ints
from decisions.autoscale.fleet import decide_fleet
from decisions.autoscale.fleet_readings import FleetReadings, binding_readings
from decisions.autoscale.gates import Gate
from engine.autoscale.fleet_columns import FleetColumns, Scalar, columns_of
from engine.autoscale.layouts import KnownLayout
from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import Policies
from engine.autoscale.topics import BucketState, TopicState

_FEW = 256
"""Number of changed topics, besides an eighth of all, that are left to the tick.

Beyond it they are rebuilt early, so each topic is copied only a few times however many change.
"""
_NAMES = np.array([gate.value for gate in GATES], object)


class HeldTopics(NamedTuple):
    """Topics whose binding gate differs from the recorded one."""

    places: Ints
    """Their indexes in the columns."""
    names: list[str]
    layouts: list[KnownLayout]
    policy_digests: npt.NDArray[np.object_]
    seqs: Ints
    """Number of this hold among those of its topic."""
    gates: npt.NDArray[np.int8]
    """Binding gate, as an index into `GATES`."""
    readings: FleetReadings
    """Measured values at the binding gate."""


class Noteworthy(NamedTuple):
    """Result of an evaluation of all topics."""

    evaluated: int
    """Number of topics evaluated."""
    chosen: list[str]
    """Topics that may act now or before the next tick, by name."""
    held: HeldTopics


class FleetView:
    """Columns of one bucket."""

    def __init__(self, state: BucketState, loads: LoadTable, policies: Policies) -> None:
        self._state, self._loads, self._policies = state, loads, policies
        self._columns = self._laid_out(())
        self._seen = (-1, -1, -1)
        """Generations of topics, rows and policies that the columns reflect."""

    def keep_up(self) -> None:
        """Rebuild early if many topics have changed, so that the next tick is fast."""
        if self._state.changes.newest - self._seen[0] > len(self._columns) // 8 + _FEW:
            self._refreshed()

    def lay_out(self) -> None:
        """Build the columns of all topics after the state was decoded."""
        self._refreshed()

    def names_ahead(self, now: int) -> list[str]:
        """Return topics with a clock ahead of `now`."""
        return self._refreshed().ahead_of(now)

    def look(self, now: int, urgent: frozenset[Gate], next_tick: int) -> Noteworthy:
        """Evaluate every topic with a layout.

        Topics held by an `urgent` gate are chosen too if it opens before `next_tick`. Instants are milliseconds.
        """
        columns = self._refreshed()
        fleet = columns.fleet(now, self._loads)
        answers = decide_fleet(fleet)
        is_hold = answers.action == HOLD
        is_urgent = np.isin(answers.gate, [code for code, gate in enumerate(GATES) if gate in urgent])
        is_new = is_hold & (answers.gate != columns.scalars[Scalar.HOLD_GATE])
        notable: Ints = np.flatnonzero(is_hold & (is_new | is_urgent))
        gates = answers.gate[notable]
        readings = binding_readings(fleet.take(notable), gates)
        opens_soon = is_urgent[notable] & (readings.eligible_at != NEVER) & (readings.eligible_at < next_tick)
        chosen = np.concatenate([np.flatnonzero(~is_hold), notable[opens_soon]])
        names = [columns.names[index] for index in chosen.tolist()]
        return Noteworthy(len(columns), names, self._held(notable, gates, readings, is_new[notable]))

    def hot_names(self) -> list[str]:
        """Return topics with a segment above a split threshold, however old, that look for hot keys."""
        return self._refreshed().hot_names(self._loads)

    def _held(self, notable: Ints, gates: npt.NDArray[np.int8], readings: FleetReadings, is_new: Bools) -> HeldTopics:
        columns, topics = self._columns, notable[is_new]
        digests = np.array([policy.digest for policy in columns.policies], object)
        return HeldTopics(
            topics,
            [columns.names[index] for index in topics.tolist()],
            [columns.layouts[index] for index in topics.tolist()],
            digests[columns.policy_of[topics]],
            columns.scalars[Scalar.HOLD_SEQ, topics] + 1,
            gates[is_new],
            readings.where(is_new),
        )

    def hold(self, held: HeldTopics) -> None:
        """Record the new binding gates of topics in state and columns."""
        self._state.hold_all(held.names, _NAMES[held.gates].tolist())
        self._columns.set_held(held.places, held.gates)

    def _refreshed(self) -> FleetColumns:
        """Return the current columns; rebuild what a layout, policy or row change has made stale."""
        changes, rows = self._state.changes, self._loads.index.generations
        topics_seen, rows_seen, policies_seen = self._seen
        self._seen = changes.newest, rows.newest, self._state.policy_generation
        of_topics, of_rows = changes.since(topics_seen), rows.since(rows_seen)
        if of_topics is None or of_rows is None or policies_seen != self._state.policy_generation:
            self._columns = self._laid_out(self._state.topics.values())
        else:
            self._refresh(set(of_topics), set(of_rows))
        return self._columns

    def _refresh(self, of_topics: set[str], of_rows: set[str]) -> None:
        """Apply changes of topics and of their load-table rows."""
        columns, topics = self._columns, self._state.topics
        if moved := [index for name in of_rows if (index := columns.places.get(name)) is not None]:
            columns.set_rows(moved, self._loads)
        removed: list[int] = []
        again: list[TopicState] = []
        same: list[TopicState] = []
        for name in of_topics:
            topic, index = topics.get(name), columns.places.get(name)
            layout = None if topic is None else topic.known
            if topic is not None and index is not None and layout is columns.layouts[index]:
                same.append(topic)
                continue
            if index is not None:
                removed.append(index)
            if topic is not None and layout is not None:
                again.append(topic)
        if same:
            columns.set_scalars(same)
        if removed or again:
            stays = np.ones(len(columns), np.bool_)
            stays[removed] = False
            self._columns = columns.take(np.flatnonzero(stays)).with_more(self._laid_out(again))

    def _laid_out(self, topics: Iterable[TopicState]) -> FleetColumns:
        """Build the columns of those topics whose layouts are known."""
        state, policies = self._state, self._policies
        laid_out, layouts = [], []
        for topic in topics:
            if (layout := topic.known) is not None:
                laid_out.append(topic)
                layouts.append(layout)
        if state.namespace_policies:
            effective = [policies.of(state, topic) for topic in laid_out]
        else:
            by_override = {
                override: policies.of_name(state, "", override) for override in {layout.override for layout in layouts}
            }
            effective = [by_override[layout.override] for layout in layouts]
        return columns_of(laid_out, layouts, effective, self._loads)
