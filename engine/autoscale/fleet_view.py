"""A bucket's topics in columns, kept between ticks, as `decisions.autoscale.fleet` evaluates them.

Stage: under `engine.autoscale.evaluation`, at a tick for every topic. Topics are laid out again when a generation says
that they have changed: at the tick, or before it where they are many, as when a fleet's layouts arrive or its state was
decoded. The loads are gathered by row at each tick.
"""

from __future__ import annotations

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
"""Changes that a tick takes over itself, besides an eighth of the topics: then each of them is copied a few times at
most on its way, however many come."""
_NAMES = np.array([gate.value for gate in GATES], object)


class Held(NamedTuple):
    """Topics whose binding gate is another than the one on record."""

    places: Ints
    names: list[str]
    layouts: list[KnownLayout]
    policy_digests: npt.NDArray[np.object_]
    seqs: Ints
    """The number of this hold among those of its topic."""
    gates: npt.NDArray[np.int8]
    """That gate, as index into `GATES`."""
    readings: FleetReadings
    """What was measured at it."""


class Noteworthy(NamedTuple):
    """What an evaluation of all topics has to say."""

    evaluated: int
    """How many topics there are."""
    chosen: list[str]
    """Topics that may act, now or before the next tick, by name."""
    held: Held


class FleetView:
    """The columns of one bucket."""

    def __init__(self, state: BucketState, loads: LoadTable, policies: Policies) -> None:
        self._state, self._loads, self._policies = state, loads, policies
        self._columns = self._laid_out(())
        self._seen = (-1, -1, -1)
        """The generations of topics, rows and policies of which the columns are."""

    def keep_up(self) -> None:
        """Lays topics out where many have changed, so that the next tick finds it done."""
        if self._state.changes.newest - self._seen[0] > len(self._columns) // 8 + _FEW:
            self._refreshed()

    def lay_out(self) -> None:
        """Lays all topics out: the state was decoded just now."""
        self._refreshed()

    def names_ahead(self, now: int) -> list[str]:
        """Topics with a clock that is ahead of `now`."""
        return self._refreshed().ahead_of(now)

    def look(self, now: int, urgent: frozenset[Gate], next_tick: int) -> Noteworthy:
        """Evaluates every topic with a layout; of those held by an `urgent` gate they are chosen that it may let go
        before `next_tick`. Instants are milliseconds."""
        columns = self._refreshed()
        fleet = columns.fleet(now, self._loads)
        answers = decide_fleet(fleet)
        is_hold = answers.action == HOLD
        is_urgent = np.isin(answers.gate, [code for code, gate in enumerate(GATES) if gate in urgent])
        is_new = is_hold & (answers.gate != columns.scalars[Scalar.HOLD_GATE])
        told: Ints = np.flatnonzero(is_hold & (is_new | is_urgent))
        gates = answers.gate[told]
        readings = binding_readings(fleet.take(told), gates)
        opens_soon = is_urgent[told] & (readings.eligible_at != NEVER) & (readings.eligible_at < next_tick)
        chosen = np.concatenate([np.flatnonzero(~is_hold), told[opens_soon]])
        names = [columns.names[place] for place in chosen.tolist()]
        return Noteworthy(len(columns), names, self._held(told, gates, readings, is_new[told]))

    def hot_names(self) -> list[str]:
        """Topics with a segment above a split threshold, where hot keys are looked for; however old its load is."""
        return self._refreshed().hot_names(self._loads)

    def _held(self, told: Ints, gates: npt.NDArray[np.int8], readings: FleetReadings, is_new: Bools) -> Held:
        columns, topics = self._columns, told[is_new]
        digests = np.array([policy.digest for policy in columns.policies], object)
        return Held(
            topics,
            [columns.names[place] for place in topics.tolist()],
            [columns.layouts[place] for place in topics.tolist()],
            digests[columns.policy_of[topics]],
            columns.scalars[Scalar.HOLD_SEQ, topics] + 1,
            gates[is_new],
            readings.where(is_new),
        )

    def hold(self, held: Held) -> None:
        """The topics are held by the gates that were found just now: state and columns have them from here on."""
        self._state.hold_all(held.names, _NAMES[held.gates].tolist())
        self._columns.set_held(held.places, held.gates)

    def _refreshed(self) -> FleetColumns:
        """The columns as things stand: laid out again where a layout, a policy or a row has changed."""
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
        """Takes over what has changed of topics, and of the rows of topics."""
        columns, topics = self._columns, self._state.topics
        if moved := [place for name in of_rows if (place := columns.places.get(name)) is not None]:
            columns.set_rows(moved, self._loads)
        gone: list[int] = []
        again: list[TopicState] = []
        same: list[TopicState] = []
        for name in of_topics:
            topic, place = topics.get(name), columns.places.get(name)
            layout = None if topic is None else topic.known
            if topic is not None and place is not None and layout is columns.layouts[place]:
                same.append(topic)
                continue
            if place is not None:
                gone.append(place)
            if topic is not None and layout is not None:
                again.append(topic)
        if same:
            columns.set_scalars(same)
        if gone or again:
            kept = np.ones(len(columns), np.bool_)
            kept[gone] = False
            self._columns = columns.take(np.flatnonzero(kept)).with_more(self._laid_out(again))

    def _laid_out(self, topics: Iterable[TopicState]) -> FleetColumns:
        """The columns of topics, of those whose layouts are known."""
        state, policies = self._state, self._policies
        known, layouts = [], []
        for topic in topics:
            if (layout := topic.known) is not None:
                known.append(topic)
                layouts.append(layout)
        if state.namespace_policies:
            found = [policies.of(state, topic) for topic in known]
        else:
            by_override = {one: policies.of_name(state, "", one) for one in {layout.override for layout in layouts}}
            found = [by_override[layout.override] for layout in layouts]
        return columns_of(known, layouts, found, self._loads)
