"""Evaluation: decide on what is due and record every decision and every new reason for holding.

Stage: after the intake of a batch. A tick evaluates all topics in columns (`engine.autoscale.fleet_view`), records
every changed hold from them, and calls `decide` for topics that may act. Between ticks, `decide` is called for
topics with an event. A decision is recorded with its whole snapshot; the snapshot of a hold is rebuilt by replay on
demand.
"""

import traceback
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from decisions.autoscale.answers import Action, gates_to_json
from decisions.autoscale.columns import GATES, NEVER
from decisions.autoscale.decide import Hold, consumers_ask_nothing, decide, next_due
from decisions.autoscale.gates import Gate
from decisions.autoscale.hot_keys import HotKey
from decisions.autoscale.snapshot import TopicSnapshot, required_segments, snapshot_to_json
from decisions.autoscale.split_pass import news_of_hot_keys
from decisions.kernel.readings import Reading
from engine.autoscale.fleet_view import FleetView, HeldTopics
from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import Policies, ResolvedTopicPolicy
from engine.autoscale.topics import BucketState, TopicState
from engine.kernel.records import HOLD_SCHEMA, HOLDS, INTERNAL_ERROR, Output
from schemas.ids import canonical_json
from schemas.snapshot import ENGINE_VERSION
from schemas.tables.rows import Family

FAMILY: Family = "autoscale"
_GATES = np.array([gate.value for gate in GATES], object)
_LOOK_AGAIN_MS = 20_000
"""Delay until a topic with several actions (guard `parallelActions`) is evaluated again."""
_WORTH_A_TICK = frozenset({Gate.SPLIT_COOLDOWN, Gate.REBUCKET_COOLDOWN, Gate.RETRY_BACKOFF})
"""Gates that schedule an extra tick if they open before the next one. Merges can wait."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluations of one batch of a bucket."""

    state: BucketState
    loads: LoadTable
    policies: Policies
    view: FleetView
    tick_ms: int
    """Time between two ticks, milliseconds."""
    now: int
    output: Output

    def run(self, is_tick: bool, by_tick: Set[str], by_consumer: Set[str]) -> None:
        """Evaluate all topics at a tick, else those that are due or had an event, once there is a policy."""
        if self.state.configured is None:
            return
        hot_keys = self.hot_keys(is_tick, by_tick)
        if is_tick:
            by_tick, by_consumer = self._look_at_all(), set()
        held: list[tuple[TopicState, ResolvedTopicPolicy, TopicSnapshot, Reading[Gate]]] = []
        for name in sorted(by_tick | by_consumer):
            topic = self.state.topics.get(name)
            if topic is None or topic.known is None:
                continue
            self.output.counts.evaluations += not is_tick
            trigger = "tick" if name in by_tick else "consumer"
            try:
                hold = self._evaluate(topic, trigger)
            except Exception:
                self._fail(topic, trigger)
            else:
                held += [hold] if hold is not None else []
        if held:
            self._hold_each(held)
        self.remember(hot_keys)

    def _look_at_all(self) -> set[str]:
        """Evaluate all topics in columns, record holds, return those for `decide`; all if columns fail."""
        try:
            noteworthy = self.view.look(self.now, _WORTH_A_TICK, self._next_tick)
        except Exception:
            self.output.add_fault(FAMILY, "all topics of a bucket", traceback.format_exc())
            every = {topic.name for topic in self.state.topics.values() if topic.known is not None}
            self.output.counts.evaluations += len(every)
            return every
        self.output.counts.evaluations += noteworthy.evaluated
        self._hold_all(noteworthy.held)
        return set(noteworthy.chosen)

    def _evaluate(
        self, topic: TopicState, trigger: str
    ) -> tuple[TopicState, ResolvedTopicPolicy, TopicSnapshot, Reading[Gate]] | None:
        """Take the decisions on a topic, or return its binding hold if that has changed."""
        policy = self.policies.of(self.state, topic)
        if trigger == "consumer" and asks_nothing(topic, policy):
            return None
        snapshot = snapshot_of(topic, self.loads, policy, self.now, trigger)
        answer = decide(snapshot)
        if not isinstance(answer, Hold):
            self._decide_all(topic, snapshot, answer, policy)
            return None
        return (topic, policy, snapshot, answer.binding) if self._is_news(topic, snapshot, answer) else None

    def _fail(self, topic: TopicState, trigger: str) -> None:
        """Hold a topic whose evaluation raised an exception; other topics continue."""
        self.output.add_fault(FAMILY, topic.name, traceback.format_exc())
        if topic.hold_gate == INTERNAL_ERROR:
            return
        self.state.hold_at(topic, INTERNAL_ERROR)
        self._record_holds(
            {
                "measured": [None],
                "limit": [None],
                "margin": [None],
                "eligible_at": [None],
                "layout_epoch": [None],
                "layout_digest": [None],
                "subject": [topic.name],
                "gate": [INTERNAL_ERROR],
                "trigger": [trigger],
                "policy_digest": [""],
                "seq": [topic.hold_seq],
            }
        )

    def hot_keys(self, is_tick: bool, by_tick: Set[str]) -> dict[str, tuple[HotKey, ...]]:
        """Return new findings on hot keys of evaluated topics whose splits no open decision blocks."""
        by_topic = {}
        for name in sorted(self.view.hot_names() if is_tick else by_tick):
            topic = self.state.topics.get(name)
            if topic is None or topic.known is None:
                continue
            if topic.in_flight is not None and topic.in_flight.action != "merge":
                continue
            try:
                policy = self.policies.of(self.state, topic)
                news = news_of_hot_keys(snapshot_of(topic, self.loads, policy, self.now, "tick"))
            except Exception:
                self.output.add_fault(FAMILY, name, traceback.format_exc())
                continue
            if news is not None:
                by_topic[name] = news
        return by_topic

    def remember(self, hot_keys: Mapping[str, tuple[HotKey, ...]]) -> None:
        """Store hot keys for the next evaluation."""
        for name, keys in hot_keys.items():
            self.state.touch(name).hot_keys = keys

    @property
    def _next_tick(self) -> int:
        return (self.now // self.tick_ms + 1) * self.tick_ms

    def _is_news(self, topic: TopicState, snapshot: TopicSnapshot, hold: Hold[Gate]) -> bool:
        """Return whether a hold must be recorded; schedule an extra tick if the next one is too late."""
        due = next_due(hold) if hold.gate in _WORTH_A_TICK else None
        if due is not None and self.now < due < self._next_tick and due != topic.due:
            self.state.touch(topic.name).due = due
            self.output.due.append((topic.name, due))
        if snapshot.trigger == "consumer" and hold.gate in (Gate.CONSUMER_DEMAND, Gate.ENTRY_BUCKETS):
            return False
        return hold.gate.value != topic.hold_gate

    def _hold_each(self, held: Sequence[tuple[TopicState, ResolvedTopicPolicy, TopicSnapshot, Reading[Gate]]]) -> None:
        """Record holds found by `decide`."""
        for topic, _, _, reading in held:
            self.state.hold_at(topic, reading.gate.value)
        readings = [reading for *_, reading in held]
        self._record_holds(
            {
                "subject": [topic.name for topic, *_ in held],
                "gate": [reading.gate.value for reading in readings],
                "measured": [reading.measured for reading in readings],
                "limit": [reading.limit for reading in readings],
                "margin": [reading.margin for reading in readings],
                "eligible_at": [reading.eligible_at for reading in readings],
                "trigger": [snapshot.trigger for _, _, snapshot, _ in held],
                "layout_epoch": [snapshot.layout.epoch for _, _, snapshot, _ in held],
                "layout_digest": [None if (layout := topic.known) is None else layout.digest for topic, *_ in held],
                "policy_digest": [policy.digest for _, policy, *_ in held],
                "seq": [topic.hold_seq for topic, *_ in held],
            }
        )

    def _hold_all(self, held: HeldTopics) -> None:
        """Record holds found in columns."""
        if not (count := len(held.names)):
            return
        self.view.hold(held)
        measured, limit, margin, eligible_at = held.readings
        self._record_holds(
            {
                "subject": held.names,
                "gate": _GATES[held.gates],
                "measured": pa.array(measured, from_pandas=True),
                "limit": pa.array(limit, from_pandas=True),
                "margin": pa.array(margin, from_pandas=True),
                "eligible_at": pa.array(eligible_at, mask=eligible_at == NEVER),
                "trigger": ["tick"] * count,
                "layout_epoch": [layout.epoch for layout in held.layouts],
                "layout_digest": [layout.digest for layout in held.layouts],
                "policy_digest": held.policy_digests,
                "seq": held.seqs,
            }
        )

    def _record_holds(self, columns: dict[str, Any]) -> None:
        """Add rows of `holds`; `columns` lacks the fields that are the same in all of them."""
        count = len(columns["subject"])
        same = {"family": FAMILY, "since": self.now, "engine_version": ENGINE_VERSION}
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.repeat(pa.scalar(same[field.name], field.type), count)
            for field in HOLD_SCHEMA
        ]
        self.output.counts.holds += count
        self.output.add_columns(HOLDS, pa.RecordBatch.from_arrays(arrays, schema=HOLD_SCHEMA).sort_by("subject"))

    def _decide_all(
        self, topic: TopicState, snapshot: TopicSnapshot, answer: Action, policy: ResolvedTopicPolicy
    ) -> None:
        """Take the decisions of an evaluation, except those recently taken that were only observed."""
        epoch, now = snapshot.layout.epoch, snapshot.now
        new = [
            action
            for action in (answer, *answer.also)
            if not topic.was_observed_lately(epoch, action.action, action.arguments, now)
        ]
        for action in new:
            self._decide(topic, snapshot, action, policy)
        again = now + _LOOK_AGAIN_MS
        if new and snapshot.policy.parallel_actions and again < self._next_tick:
            topic.due = again
            self.output.due.append((topic.name, again))

    def _decide(self, topic: TopicState, snapshot: TopicSnapshot, answer: Action, policy: ResolvedTopicPolicy) -> None:
        self.state.touch(topic.name)
        identity = topic.decided(snapshot.layout.epoch, answer.action, answer.arguments, snapshot.now)
        policy_json = policy.bucket_override_json if snapshot.has_buckets else policy.override_json
        self.output.counts.decisions += 1
        self.output.add(
            "decisions",
            {
                "family": FAMILY,
                "subject": topic.name,
                "trigger": snapshot.trigger,
                "layout_epoch": snapshot.layout.epoch,
                "policy_digest": policy.digest,
                "inputs": snapshot_to_json(snapshot, topic.metadata_json or "{}", policy_json),
                "engine_version": ENGINE_VERSION,
                "decision_id": identity,
                "action": answer.action,
                "arguments": canonical_json(answer.arguments),
                "reason": answer.reason,
                "decided_at": snapshot.now,
                "gates": gates_to_json(answer.gates),
                "seq": topic.decision_seq,
            },
        )


def asks_nothing(topic: TopicState, policy: ResolvedTopicPolicy) -> bool:
    """Return whether all consumers of a topic have segments, so that an event changes nothing."""
    assert topic.known is not None
    required = required_segments(topic.consumers)
    return consumers_ask_nothing(policy.policy, required, topic.known.active_count, topic.open_decision is not None)


def snapshot_of(
    topic: TopicState, loads: LoadTable, policy: ResolvedTopicPolicy, now: int, trigger: str
) -> TopicSnapshot:
    """Return the snapshot of a topic with a known layout at `now` (milliseconds)."""
    assert topic.layout is not None
    return TopicSnapshot(
        topic=topic.name,
        now=now,
        trigger=trigger,  # type: ignore[arg-type]
        layout=topic.layout,
        loads=loads.loads_of(topic.name),
        consumers=topic.consumers,
        policy=policy.policy,
        last_split_at=topic.cooldowns.last_split_at,
        last_merge_at=topic.cooldowns.last_merge_at,
        last_rebucket_at=topic.cooldowns.last_rebucket_at,
        in_flight=topic.in_flight,
        failures=topic.failures.in_a_row,
        failed_at=topic.failures.failed_at,
        failed_action=topic.failures.action,
        merge_depths=topic.merge_depths if policy.policy.explicit_lineage else None,
        pasts=topic.pasts if policy.policy.looks_back else None,
        hot_keys=topic.hot_keys,
    )
