"""Rows of a cycle: its decisions, and new binding gates of the cluster and its brokers.

Stage: the last of a cycle. A full snapshot is megabytes, so a decision records only the parts about its bundle,
source and destination; replay rebuilds the others.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from engine.bundles.clusters import ClusterState, LatestHold
from engine.bundles.cycle import FAMILY, Cycle, CycleDecision
from engine.kernel.records import HOLD_SCHEMA, HOLDS, Output
from schemas.bundles import BundleReading
from schemas.ids import canonical_json, digest
from schemas.snapshot import ENGINE_VERSION

MAX_GATES = 200
"""Limit per decision on recorded readings, the last ones, and on broker names of a random choice."""
MAX_HELD = 4000
"""Limit per cluster on subjects with a remembered gate: itself, its brokers, and some removed ones."""


def record_cycle(output: Output, state: ClusterState, cycle: Cycle) -> None:
    """Record a cycle."""
    output.counts.evaluations += 1
    policy = "" if state.policies is None else digest(state.policies.to_json())
    for decided in cycle.decided:
        output.counts.decisions += 1
        output.add("decisions", decision_row(state, cycle, decided, policy))
    rows = [row for held in cluster_reasons(state, cycle) if (row := _hold_row(state, cycle, held, policy)) is not None]
    if rows:
        output.counts.holds += len(rows)
        output.add_columns(HOLDS, pa.RecordBatch.from_pylist(rows, HOLD_SCHEMA))


def decision_row(state: ClusterState, cycle: Cycle, decided: CycleDecision, policy: str) -> dict[str, Any]:
    """Return a row of `decisions`."""
    decision = decided.decision
    arguments = {"bundle": decision.bundle, "sourceBroker": decision.source_broker}
    if decision.action == "split":
        arguments |= {"positions": decision.boundaries}  # type: ignore[dict-item]
    else:
        arguments |= {"destinationBroker": decision.destination_broker}
    return {
        "decision_id": decided.decision_id,
        "family": FAMILY,
        "subject": state.name,
        "action": decision.action,
        "arguments": canonical_json(arguments),
        "reason": decision.reason,
        "trigger": "tick",
        "layout_epoch": None,
        "policy_digest": policy,
        "decided_at": cycle.now,
        "inputs": canonical_json(_inputs(state, decided)),
        "gates": canonical_json(
            [reading.model_dump(by_alias=True, exclude_none=True) for reading in _readings_about(decided)]
        ),
        "engine_version": ENGINE_VERSION,
        "seq": decided.number,
    }


def _inputs(state: ClusterState, decided: CycleDecision) -> dict[str, Any]:
    """Return the inputs of a decision: its bundle, and the usage of its two brokers."""
    decision, answer = decided.decision, decided.answer
    averages = state.averages.get(decision.bundle)
    return {
        "bundle": None if averages is None else averages.model_dump(mode="json", by_alias=True, exclude_none=True),
        "usage": {broker: answer.usage[broker] for broker in _brokers(decided) if broker in answer.usage},
        "strategy": answer.strategy,
        "profile": answer.profile,
        "statistics": answer.statistics,
        "ties": [
            {"brokers": tie.brokers[:MAX_GATES], "chosen": tie.chosen}
            for tie in answer.ties
            if tie.bundle == decision.bundle
        ],
    }


def _brokers(decided: CycleDecision) -> list[str]:
    return [broker for broker in (decided.decision.source_broker, decided.decision.destination_broker) if broker]


def _readings_about(decided: CycleDecision) -> list[BundleReading]:
    """Return the readings about the bundle, its two brokers, and the cluster."""
    bundle, brokers, readings = decided.decision.bundle, (None, *_brokers(decided)), list[BundleReading]()
    for reading in decided.answer.readings:
        about = reading.bundle
        if about == bundle or (about is None and reading.broker in brokers):
            readings.append(reading)
    return readings[-MAX_GATES:]


Reason = tuple[str, BundleReading | None]
"""A subject and its binding gate; None: it is acted on."""


def cluster_reasons(state: ClusterState, cycle: Cycle) -> Iterator[Reason]:
    """Yield the binding gate of the cluster and of each of its brokers (`cluster/broker`)."""
    shedding = cycle.shedding
    failing = [reading for reading in shedding.readings if not reading.passed]
    if any(decided.answer is shedding for decided in cycle.decided):
        yield state.name, None
    else:
        yield state.name, failing[-1] if failing else None
    by_broker = {reading.broker: reading for reading in failing if reading.bundle is None}
    moved = {broker for decided in cycle.decided for broker in _brokers(decided)}
    for broker in cycle.live:
        yield f"{state.name}/{broker}", None if broker in moved else by_broker.get(broker)


def _hold_row(state: ClusterState, cycle: Cycle, reason: Reason, policy: str) -> dict[str, Any] | None:
    """Return a row of `holds` if the gate has changed."""
    subject, reading = reason
    gate = None if reading is None else reading.gate
    if (held_at := state.held.get(subject)) is None:
        if gate is None:
            return None
        if len(state.held) >= MAX_HELD:
            live = {state.name, *(f"{state.name}/{broker}" for broker in cycle.live)}
            state.held = {name: held for name, held in state.held.items() if name in live}
        held_at = state.held[subject] = LatestHold(None, 0)
    if held_at.gate == gate:
        return None
    held_at.gate = gate
    if reading is None:
        return None
    held_at.seq += 1
    return {
        "family": FAMILY,
        "subject": subject,
        "gate": gate,
        "measured": reading.measured,
        "limit": reading.limit,
        "margin": reading.margin,
        "eligible_at": None,
        "trigger": "tick",
        "since": cycle.now,
        "layout_epoch": None,
        "layout_digest": None,
        "policy_digest": policy,
        "engine_version": ENGINE_VERSION,
        "seq": held_at.seq,
    }
