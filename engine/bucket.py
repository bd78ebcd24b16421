"""The bucket engine: packed state, raw records and the batch's time in; new state and output out. Pure, no Spark.

Stage: the whole of the stateful operator (DESIGN section 2). `streaming.processor` is the thin adapter that Spark sees.
Decoded state is kept under the digest of its bytes: a retried or replayed batch, whose store holds others, decodes it
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decisions.autoscale.answers import gates_to_json
from decisions.autoscale.decide import Hold, Merge, Split, decide, next_due
from decisions.autoscale.gates import Gate
from decisions.autoscale.snapshot import TopicSnapshot, snapshot_to_json
from engine.autoscale.fleet_view import FleetView
from engine.autoscale.intake import Intake
from engine.autoscale.loads import LoadTable
from engine.autoscale.policies import EffectivePolicy, Policies
from engine.autoscale.routes import Routes
from engine.autoscale.samples import Samples
from engine.autoscale.state import BucketState, StateError, TopicState
from engine.packed import FENCE_V1_BYTES, Chain, Packed, Written, fence_of
from engine.records import Output, RawRecord
from schemas.ids import canonical_json
from schemas.tables import Family
from schemas.version import ENGINE_VERSION

FAMILY: Family = "autoscale"
MOST_HOLDS_PER_TICK = 200
"""Holds that a bucket puts on record at one tick, 4 kB each: what a whole fleet has to say at its first tick is said
over several."""


@dataclass(frozen=True)
class EngineSettings:
    """What the job's configuration gives every bucket; travels to the workers."""

    profile: str
    cluster_policy: str | None
    """The configured cluster policy as JSON."""
    change_threshold: float
    """Relative move of a rate that is significant, as a fraction."""
    tick_ms: int
    """Time between two ticks, milliseconds."""


@dataclass
class _Decoded:
    fence: bytes | None
    state: BucketState
    loads: LoadTable
    view: FleetView
    topics_chain: Chain
    loads_chain: Chain
    is_old: bool
    """Whether it was stored by an older version: the next batch writes all of it anew."""
    routes: Routes


class BucketEngine:
    """Runs buckets, one batch at a time."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._policies = Policies(settings.profile, settings.cluster_policy)
        self._decoded: dict[int, _Decoded] = {}

    def holds(self, bucket: int, fence: bytes | None) -> bool:
        """Whether the decoded state of this fence is at hand: `run` then needs no packed bytes."""
        decoded = self._decoded.get(bucket)
        return decoded is not None and fence is not None and decoded.fence == fence

    def run(
        self, bucket: int, packed: Packed, records: Sequence[RawRecord], now: int, samples: Samples | None = None
    ) -> tuple[Written, Output]:
        """One batch of one bucket: what has to be stored, and the output.

        `now` is the batch's time in milliseconds; equal arguments give equal answers. Raises `StateError` when the
        packed state cannot be read, and for nothing else that data can cause.
        """
        decoded = self._take(bucket, packed)
        output = Output()
        intake = Intake(decoded.state, decoded.loads, self._policies, decoded.routes, now, output)
        intake.take(records, samples, self._settings.change_threshold)
        self._evaluate(decoded, intake, now, output)
        written = _write(decoded, bucket)
        self._decoded[bucket] = decoded
        return written, output

    def _take(self, bucket: int, packed: Packed) -> _Decoded:
        """The decoded state, taken out: a batch that fails on the way leaves none behind that could be stale."""
        holds = self.holds(bucket, packed.fence)
        decoded = self._decoded.pop(bucket, None)
        if holds and decoded is not None:
            return decoded
        topics_chain = Chain.of(packed.topics, packed.topics_log)
        loads_chain = Chain.of(packed.loads, packed.loads_log)
        is_old = packed.fence is not None and len(packed.fence) == FENCE_V1_BYTES
        expected = topics_chain.base + loads_chain.base if is_old else fence_of(topics_chain, loads_chain)
        if packed.fence is not None and packed.fence != expected:
            raise StateError(f"the stored state of bucket {bucket} is not what was stored: its fence differs")
        state = BucketState.unpack(packed.topics, packed.topics_log)
        loads = LoadTable.unpack(packed.loads, packed.loads_log)
        view = FleetView(state, loads, self._policies)
        routes = Routes(state, loads, self._policies)
        return _Decoded(packed.fence, state, loads, view, topics_chain, loads_chain, is_old, routes)

    def _evaluate(self, decoded: _Decoded, intake: Intake, now: int, output: Output) -> None:
        state, view = decoded.state, decoded.view
        if intake.new_policies:
            view.forget_all()
        view.forget(state.changed, moved=decoded.routes.new_rows)
        decoded.routes.new_rows.clear()
        by_tick, by_consumer = intake.due_by_tick, intake.due_by_consumer
        if intake.tick:
            evaluated, noteworthy = view.names_to_look_at(now, _WORTH_A_TICK, MOST_HOLDS_PER_TICK)
            output.counts.evaluations += evaluated
            by_tick, by_consumer = set(noteworthy), set()
        for name in sorted(by_tick | by_consumer):
            topic = state.topics.get(name)
            if topic is None or topic.layout is None:
                continue
            output.counts.evaluations += not intake.tick
            policy = self._policies.of(state, topic)
            snapshot = snapshot_of(topic, decoded.loads, policy, now, "tick" if name in by_tick else "consumer")
            answer = decide(snapshot)
            if isinstance(answer, Hold):
                self._hold(state, topic, snapshot, answer, policy, output)
            else:
                _decide(state, topic, snapshot, answer, policy, output)
        view.forget(state.changed)

    def _hold(
        self, state: BucketState, topic: TopicState, snapshot: TopicSnapshot, hold: Hold, policy: EffectivePolicy,
        output: Output,
    ) -> None:  # fmt: skip
        due = next_due(hold) if hold.gate in _WORTH_A_TICK else None
        next_tick = (snapshot.now // self._settings.tick_ms + 1) * self._settings.tick_ms
        if due is not None and snapshot.now < due < next_tick and due != topic.due:
            state.touch(topic.name).due = due
            output.due.append((topic.name, due))
        if snapshot.trigger == "consumer" and hold.gate is Gate.CONSUMER_DEMAND:
            return
        if hold.gate.value == topic.hold_gate:
            return
        state.touch(topic.name)
        topic.hold_at(hold.gate.value)
        reading = hold.binding
        output.counts.holds += 1
        output.holds.append({
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


def _write(decoded: _Decoded, bucket: int) -> Written:
    """What has changed, as entries of the logs; or new bases for logs that have outgrown theirs."""
    topics = loads = topics_entry = loads_entry = None
    if decoded.state.is_changed or decoded.is_old:
        if decoded.is_old or decoded.topics_chain.is_outgrown(bucket):
            topics = decoded.state.pack()
            decoded.topics_chain = Chain.of(topics)
        else:
            topics_entry = decoded.state.pack_changes()
            decoded.topics_chain.add(topics_entry)
    if decoded.loads.is_changed or decoded.is_old:
        if decoded.is_old or decoded.loads_chain.is_outgrown(bucket):
            loads = decoded.loads.pack()
            decoded.loads_chain = Chain.of(loads)
            decoded.routes.clear()
            decoded.view.forget_all()
        else:
            loads_entry = decoded.loads.pack_changes()
            decoded.loads_chain.add(loads_entry)
    decoded.is_old = False
    decoded.fence = fence_of(decoded.topics_chain, decoded.loads_chain)
    return Written(decoded.fence, topics, loads, topics_entry, loads_entry)


_WORTH_A_TICK = frozenset({Gate.SPLIT_COOLDOWN, Gate.RETRY_BACKOFF})
"""Splits are fast: an evaluation that only waits for these gets a tick of its own. Merges are lazy: they wait."""


def snapshot_of(topic: TopicState, loads: LoadTable, policy: EffectivePolicy, now: int, trigger: str) -> TopicSnapshot:
    """What an evaluation of a topic sees whose layout is known; `now` in milliseconds, `trigger` consumer or tick."""
    assert topic.layout is not None
    return TopicSnapshot(
        topic=topic.name,
        now=now,
        trigger=trigger,  # type: ignore[arg-type]
        layout=topic.layout,
        loads=loads.loads_of(topic.name),
        consumers=topic.consumers,
        policy=policy.policy,
        last_split_at=topic.last_split_at,
        last_merge_at=topic.last_merge_at,
        in_flight=None if topic.flight is None else (topic.flight.decision_id, topic.flight.since),
        failures=topic.failures,
        failed_at=topic.failed_at,
        failed_action=topic.failed_action,
        merge_depths=topic.merge_depths if policy.policy.explicit_lineage else None,
    )


def _decide(
    state: BucketState, topic: TopicState, snapshot: TopicSnapshot, answer: Split | Merge, policy: EffectivePolicy,
    output: Output,
) -> None:  # fmt: skip
    action = "split" if isinstance(answer, Split) else "merge"
    segments = [answer.segment] if isinstance(answer, Split) else list(answer.segments)
    state.touch(topic.name)
    identity = topic.begin_flight(snapshot.layout.epoch, action, segments, snapshot.now)
    output.counts.decisions += 1
    output.decisions.append({
        **_identity(topic, snapshot, policy),
        "decision_id": identity,
        "action": action,
        "arguments": canonical_json({"segments": segments}),
        "reason": answer.reason,
        "decided_at": snapshot.now,
        "gates": gates_to_json(answer.gates),
        "seq": topic.decision_seq,
    })  # fmt: skip


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
