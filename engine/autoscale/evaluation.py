"""Evaluation: what is due is decided on, and every decision and every new reason for holding is put on record.

Stage: behind the intake of a batch. At a tick all topics are evaluated in columns (`engine.autoscale.fleet_view`), and
`decide` is asked about those of which there is something to say; between ticks it is asked about the topics that
something has happened to.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from decisions.autoscale.answers import gates_to_json
from decisions.autoscale.decide import Hold, Merge, Split, decide, next_due
from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import TopicSnapshot, snapshot_to_json
from engine.autoscale.fleet_view import FleetView
from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.topics import BucketState, TopicState
from engine.kernel.records import Output
from schemas.ids import canonical_json
from schemas.tables import Family
from schemas.version import ENGINE_VERSION

FAMILY: Family = "autoscale"
MAX_HOLDS_PER_TICK = 200
"""Holds that a bucket puts on record in full at one tick, 4 kB each. What more topics have to say, a whole fleet at its
first tick for instance, is put on record at the same tick in short: the gate, without what was measured."""
_WORTH_A_TICK = frozenset({Gate.SPLIT_COOLDOWN, Gate.RETRY_BACKOFF})
"""Splits are fast: an evaluation that only waits for these gets a tick of its own. Merges are lazy: they wait."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluations of one batch of a bucket."""

    state: BucketState
    loads: LoadTable
    policies: Policies
    view: FleetView
    tick_ms: int
    """Time between two ticks, milliseconds."""
    now: int
    output: Output

    def run(self, is_tick: bool, by_tick: Set[str], by_consumer: Set[str]) -> None:
        """Evaluates all topics at a tick, else those that a tick of their own has reached, or an event.

        Nothing as long as the cluster's policy is not known: it is on its way from the job, in the same stream.
        """
        if self.state.configured is None:
            return
        counts = self.output.counts
        if is_tick:
            found = self.view.look(self.now, _WORTH_A_TICK, MAX_HOLDS_PER_TICK)
            counts.evaluations += found.evaluated
            by_tick, by_consumer = set(found.in_full), set()
            for name, gate in found.in_short:
                self._hold_in_short(self.state.topics[name], gate)
        for name in sorted(by_tick | by_consumer):
            topic = self.state.topics.get(name)
            if topic is None or topic.layout is None:
                continue
            counts.evaluations += not is_tick
            policy = self.policies.of(self.state, topic)
            trigger = "tick" if name in by_tick else "consumer"
            snapshot = snapshot_of(topic, self.loads, policy, self.now, trigger)
            answer = decide(snapshot)
            if isinstance(answer, Hold):
                self._hold(topic, snapshot, answer, policy)
            else:
                self._decide(topic, snapshot, answer, policy)

    def _hold(self, topic: TopicState, snapshot: TopicSnapshot, hold: Hold[Gate], policy: EffectivePolicy) -> None:
        due = next_due(hold) if hold.gate in _WORTH_A_TICK else None
        next_tick = (snapshot.now // self.tick_ms + 1) * self.tick_ms
        if due is not None and snapshot.now < due < next_tick and due != topic.due:
            self.state.touch(topic.name).due = due
            self.output.due.append((topic.name, due))
        if snapshot.trigger == "consumer" and hold.gate is Gate.CONSUMER_DEMAND:
            return
        if hold.gate.value == topic.hold_gate:
            return
        self.state.hold_at(topic, hold.gate.value)
        reading = hold.binding
        self.output.counts.holds += 1
        self.output.add("holds", {
            **_identity(topic, snapshot, policy),
            "gate": hold.gate.value,
            "measured": reading.measured,
            "limit": reading.limit,
            "margin": reading.margin,
            "eligible_at": reading.eligible_at,
            "since": snapshot.now,
            "gates": gates_to_json(hold.gates),
            "seq": topic.hold_seq,
        })  # fmt: skip

    def _hold_in_short(self, topic: TopicState, gate: str) -> None:
        """Another gate has become the binding one; no more is told."""
        assert topic.layout is not None
        self.state.hold_at(topic, gate)
        self.output.counts.holds += 1
        self.output.add("holds", {
            "family": FAMILY,
            "subject": topic.name,
            "trigger": "tick",
            "layout_epoch": topic.layout.epoch,
            "policy_digest": self.policies.of(self.state, topic).digest,
            "engine_version": ENGINE_VERSION,
            "gate": gate,
            "since": self.now,
            "seq": topic.hold_seq,
        })  # fmt: skip

    def _decide(
        self, topic: TopicState, snapshot: TopicSnapshot, answer: Split | Merge, policy: EffectivePolicy
    ) -> None:  # fmt: skip
        action = "split" if isinstance(answer, Split) else "merge"
        segments = [answer.segment] if isinstance(answer, Split) else list(answer.segments)
        if topic.was_observed_lately(snapshot.layout.epoch, action, segments, snapshot.now):
            return
        self.state.touch(topic.name)
        identity = topic.decided(snapshot.layout.epoch, action, segments, snapshot.now)
        self.output.counts.decisions += 1
        self.output.add("decisions", {
            **_identity(topic, snapshot, policy),
            "decision_id": identity,
            "action": action,
            "arguments": canonical_json({"segments": segments}),
            "reason": answer.reason,
            "decided_at": snapshot.now,
            "gates": gates_to_json(answer.gates),
            "seq": topic.decision_seq,
        })  # fmt: skip


def snapshot_of(topic: TopicState, loads: LoadTable, policy: EffectivePolicy, now: int, trigger: str) -> TopicSnapshot:
    """What an evaluation of a topic sees whose layout is known; `now` in milliseconds, `trigger` consumer or tick."""
    assert topic.layout is not None
    decision = topic.open_decision
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
        in_flight=None if decision is None else (decision.decision_id, decision.since),
        failures=topic.failures.in_a_row,
        failed_at=topic.failures.failed_at,
        failed_action=topic.failures.action,
        merge_depths=topic.merge_depths if policy.policy.explicit_lineage else None,
    )


def _identity(topic: TopicState, snapshot: TopicSnapshot, policy: EffectivePolicy) -> dict[str, object]:
    return {
        "family": FAMILY,
        "subject": topic.name,
        "trigger": snapshot.trigger,
        "layout_epoch": snapshot.layout.epoch,
        "policy_digest": policy.digest,
        "inputs": snapshot_to_json(snapshot, topic.metadata_json or "{}", policy.override_json),
        "engine_version": ENGINE_VERSION,
    }
