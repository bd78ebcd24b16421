"""A bucket's topics in columns, kept between ticks, as `decisions.autoscale.fleet` evaluates them.

Stage: under `engine.autoscale.evaluation`, at a tick for every topic. What a topic contributes is laid out again only
when its generation says that it has changed; the loads are gathered by row at each tick.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from decisions.autoscale.clocks import NEVER as NO_INSTANT
from decisions.autoscale.fleet import GATES, HOLD, NEVER, Fleet, FleetAnswers, decide_fleet
from decisions.autoscale.gates import Gate
from decisions.autoscale.policy import Policy
from decisions.autoscale.snapshot import MANAGED
from decisions.topic.layout import SegmentLayout
from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.topics import BucketState, TopicState
from schemas.metadata import RATES

_GATE_CODE = {gate.value: code for code, gate in enumerate(GATES)}
_NO_GATE = -2
"""For a topic that has no hold on record: differs from every gate, and from the -1 of an action."""
_FAILED_ACTIONS = {None: 0, "split": 1, "merge": 2}


@dataclass
class _Topic:
    """What one topic contributes: a row of each column per topic, and its active segments."""

    name: str
    policy: EffectivePolicy
    layout: SegmentLayout
    scalars: tuple[int, ...]
    """As `_scalars` gives them."""
    segment_ids: list[int]
    is_single_hash: list[bool]
    depths: list[int]
    rows: list[int]
    """Rows of the load table; -1 where a segment has none."""
    rows_generation: int


class Noteworthy(NamedTuple):
    """What an evaluation of all topics has to say."""

    evaluated: int
    """How many topics there are."""
    in_full: list[str]
    """Topics to look at one by one, by name."""
    in_short: list[tuple[str, str]]
    """The others whose binding gate has changed, by name, and that gate."""


class FleetView:
    """The columns of one bucket."""

    def __init__(self, state: BucketState, loads: LoadTable, policies: Policies) -> None:
        self._state, self._loads, self._policies = state, loads, policies
        self._topics: dict[str, _Topic] = {}
        self._columns: _Columns | None = None
        self._seen = (-1, -1, -1)
        """The generations of topics, rows and policies of which the columns are."""

    def names_ahead(self, now: int) -> list[str]:
        """Topics with a clock that is ahead of `now`."""
        columns = self._refreshed()
        return [columns.names[place] for place in np.flatnonzero(columns.scalars[_NEWEST] > now).tolist()]

    def look(self, now: int, always: frozenset[Gate], max_holds: int) -> Noteworthy:
        """Evaluates every topic with a layout.

        In full are told those that may act, those whose binding gate is one of `always`, and of those whose gate is
        another than the one on record at most `max_holds`, with the fewest holds on record first; the others in short.
        """
        columns = self._refreshed()
        if not len(columns.names):
            return Noteworthy(0, [], [])
        answers = decide_fleet(columns.fleet(now, self._loads))
        return _noteworthy(columns, answers, always, max_holds)

    def _refreshed(self) -> _Columns:
        """The columns as things stand: laid out again when a layout, a policy or a row has changed."""
        columns = self._columns
        names = self._changed()
        is_new = columns is None
        for name in names:
            is_new |= self._lay_out(name)
        if columns is None or is_new:
            columns = self._columns = _Columns(list(self._topics.values()))
        else:
            for name in names & columns.places.keys():
                columns.scalars[:, columns.places[name]] = self._topics[name].scalars
        return columns

    def _changed(self) -> set[str]:
        """Topics that may be others than when this was asked last."""
        changes, rows = self._state.changes, self._loads.index.generations
        topics_seen, rows_seen, policies_seen = self._seen
        self._seen = changes.newest, rows.newest, self._state.policy_generation
        of_topics, of_rows = changes.since(topics_seen), rows.since(rows_seen)
        if of_topics is None or of_rows is None or policies_seen != self._state.policy_generation:
            return {*self._state.topics, *self._topics}
        return {*of_topics, *of_rows}

    def _lay_out(self, name: str) -> bool:
        """Takes a topic over as it is now; False when no more than its scalars has changed."""
        topic, before = self._state.topics.get(name), self._topics.get(name)
        if topic is None or topic.layout is None:
            self._topics.pop(name, None)
            return before is not None
        policy = self._policies.of(self._state, topic)
        generation = self._loads.index.generations.of(name)
        if (
            before
            and before.layout is topic.layout
            and before.policy is policy
            and before.rows_generation == generation
        ):
            before.scalars = _scalars(topic)
            return False
        active, layout = topic.layout.active, topic.layout
        remembered = topic.merge_depths if policy.policy.explicit_lineage else {}
        ids = [segment.segment_id for segment in active]
        self._topics[name] = _Topic(
            name,
            policy,
            layout,
            _scalars(topic),
            ids,
            [segment.start == segment.end for segment in active],
            [max(layout.merge_depth(i), remembered.get(i, 0)) for i in ids],
            self._loads.index.known_rows(name, ids),
            generation,
        )
        return True


class _Columns:
    """All topics side by side, those of one policy together."""

    def __init__(self, topics: list[_Topic]) -> None:
        groups: dict[Policy, list[_Topic]] = {}
        for topic in topics:
            groups.setdefault(topic.policy.policy, []).append(topic)
        ordered = [topic for group in groups.values() for topic in group]
        self.names = [topic.name for topic in ordered]
        self.places = {name: place for place, name in enumerate(self.names)}
        self.policies = list(groups)
        sizes = [len(group) for group in groups.values()]
        self.policy_starts = (np.cumsum(sizes) - sizes).tolist() if sizes else []
        self.scalars = np.array([topic.scalars for topic in ordered], np.int64).reshape(-1, _SCALARS).T.copy()
        counts = np.array([len(topic.rows) for topic in ordered], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        segments = int(self.offsets[-1])
        self.segment_ids = np.fromiter(chain.from_iterable(topic.segment_ids for topic in ordered), np.int64, segments)
        self.is_single_hash = np.fromiter(
            chain.from_iterable(topic.is_single_hash for topic in ordered), np.bool_, segments
        )
        self.depths = np.fromiter(chain.from_iterable(topic.depths for topic in ordered), np.int64, segments)
        self.rows = np.fromiter(chain.from_iterable(topic.rows for topic in ordered), np.int64, segments)
        by_threshold = np.array([topic.policy.policy.cold_since_threshold for topic in ordered], np.bool_)
        self.by_threshold = np.repeat(by_threshold, counts)

    def fleet(self, now: int, loads: LoadTable) -> Fleet:
        """The columns with the loads as they are."""
        count = len(self.names)
        required, last_split_at, last_merge_at, in_flight, failures, failed_at, failed_action, *_ = self.scalars
        rows = self.rows
        missing = rows < 0
        if len(loads.modified_at):
            modified_at = np.where(missing, NO_INSTANT, loads.modified_at[rows])
            missing = modified_at == NO_INSTANT
            cold_since, seen_at = loads.cold_since[rows], loads.seen_at[rows]
            since = np.where(self.by_threshold & (cold_since != NO_INSTANT), cold_since, modified_at)
            rates = [np.where(missing, np.nan, loads.rates[rows, column]) for column in range(len(RATES))]
        else:
            seen_at = since = np.zeros(len(rows), np.int64)
            rates = [np.full(len(rows), np.nan)] * len(RATES)
        return Fleet(
            self.policies, self.policy_starts, self.offsets, np.full(count, now, np.int64), np.zeros(count, np.bool_),
            required, last_split_at, last_merge_at, in_flight.astype(np.bool_), failures, failed_at,
            failed_action.astype(np.int8), self.segment_ids, self.is_single_hash,
            (rates[0], rates[1], rates[2], rates[3]),
            np.where(missing, NEVER, seen_at), np.where(missing, NEVER, since), self.depths,
        )  # fmt: skip


def _noteworthy(columns: _Columns, answers: FleetAnswers, always: frozenset[Gate], max_holds: int) -> Noteworthy:
    chosen = (answers.action != HOLD) | np.isin(answers.gate, [_GATE_CODE[gate.value] for gate in always])
    others = np.flatnonzero(~chosen & (answers.gate != columns.scalars[_HOLD_GATE]))
    explained = columns.scalars[_HOLD_SEQ, others].tolist()
    gates = {columns.names[place]: int(answers.gate[place]) for place in others.tolist()}
    fewest = [name for _, name in heapq.nsmallest(max_holds, zip(explained, gates, strict=True))]
    in_full = sorted([*(columns.names[place] for place in np.flatnonzero(chosen).tolist()), *fewest])
    for name in fewest:
        del gates[name]
    return Noteworthy(len(columns.names), in_full, [(name, GATES[gate].value) for name, gate in sorted(gates.items())])


_SCALARS, _HOLD_GATE, _HOLD_SEQ, _NEWEST = 10, 7, 8, 9


def _scalars(topic: TopicState) -> tuple[int, ...]:
    """required, last_split_at, last_merge_at, in_flight, failures, failed_at, failed_action, hold gate, hold seq,
    newest instant."""
    return (
        max((count for kind, count in topic.consumers.values() if kind in MANAGED), default=0),
        NEVER if topic.cooldowns.last_split_at is None else topic.cooldowns.last_split_at,
        NEVER if topic.cooldowns.last_merge_at is None else topic.cooldowns.last_merge_at,
        topic.open_decision is not None,
        topic.failures.in_a_row,
        NEVER if topic.failures.failed_at is None else topic.failures.failed_at,
        _FAILED_ACTIONS[topic.failures.action],
        _NO_GATE if topic.hold_gate is None else _GATE_CODE.get(topic.hold_gate, _NO_GATE),
        topic.hold_seq,
        topic.newest_instant,
    )
