"""One cycle of a cluster, as Pulsar's leader runs one each minute. Pure.

Stage: evaluation, at each tick: reports, averages, shedding with placement, splits. Takes the cluster's state and
returns decisions with their reasons; what upstream keeps in memory between cycles is in the state. The report rule
is applied here, not on arrival, to the newest report of each broker since the last cycle, so a cycle does not depend
on how messages arrived. A bundle's averages take one sample from each report in effect.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from decisions.bundles.cluster import complete_report as with_totals
from decisions.bundles.configuration import Configuration, ConfigurationError
from decisions.bundles.decide import decide
from decisions.bundles.gates import BundleGate
from decisions.bundles.reports import LoadOfReport, is_reported
from decisions.bundles.top_bundles import choose_top_bundles
from decisions.bundles.usage import max_usage, weighted_max
from engine.bundles.clusters import MAX_OPEN_MS, ClusterState, OpenBundleDecision
from engine.bundles.moves import project_reports
from schemas.base import Count, construct_model
from schemas.bundles import BundleAnswer, BundleData, BundleDecision, BundleReading, BundleSnapshot, TopBundlesLoadData
from schemas.ids import digest
from schemas.kafka.broker_messages import BrokerLoadReport, LocalBrokerReport, Report

FAMILY = "bundles"
MAX_SILENCE_MS = 30 * 60_000
"""Age at which a silent broker not listed as live is dropped; it reports at least every 15 minutes."""
MAX_UNOWNED_MS, MAX_UNMENTIONED_MS = 3_600_000, 24 * 3_600_000
"""Ages at which a namespace without owners, and one that is not mentioned any more, are dropped.

Measured up to the newest message about the cluster, so that a stopped collector drops nothing.
"""
_SPARE_AVERAGES = 1000
_MAX_SAID = 500
"""Limit on the characters of an error."""


@dataclass(frozen=True)
class CycleDecision:
    """A decision taken in a cycle."""

    decision_id: str
    number: int
    """Sequence number within its cluster: 1, 2, 3, …"""
    decision: BundleDecision
    answer: BundleAnswer
    """The part of the cycle that produced it."""


@dataclass(frozen=True)
class Cycle:
    """Inputs and decisions of a cycle."""

    now: int
    live: tuple[str, ...]
    """Live brokers in this cycle."""
    shedding: BundleAnswer
    splitting: BundleAnswer
    decided: tuple[CycleDecision, ...]
    fault: str | None = None
    """Traceback of an internal error that holds the cluster."""


def run_cycle(state: ClusterState, now: int) -> Cycle | None:
    """Run one cycle of a cluster at `now`, milliseconds, updating its state; None without live brokers.

    Missing or unreadable policies hold the cluster with the gate `settings`: nothing is decided on guesses. An
    internal error holds it with `internal-error`. In both cases only the samples of the cycle remain.
    """
    _forget_old(state, now)
    memory = state.memory
    try:
        sampled = _count_reports(state)
        if not _live_reports(state):
            return None
        _take_samples(state, sampled, now)
        _settle_moves(state)
        memory = state.memory
        if state.policies is None:
            raise ConfigurationError("no policies of the cluster have come yet")
        if state.policies.unreadable is not None:
            raise ConfigurationError(f"the newest policies cannot be read: {state.policies.unreadable}")
        shedding, splitting = _decide_cycle(state, now, "shed"), _decide_cycle(state, now, "split")
        decided = _take_decisions(state, now, shedding, splitting)
    except ConfigurationError as error:
        state.memory = memory
        return _held_cycle(state, now, BundleGate.SETTINGS, str(error)) if state.reports else None
    except Exception as error:
        state.memory = memory
        return _held_cycle(
            state, now, BundleGate.INTERNAL_ERROR, f"{type(error).__name__}: {error}", traceback.format_exc()
        )
    state.changes.balancer = True
    return Cycle(now, tuple(_live_reports(state)), shedding, splitting, decided)


def _held_cycle(state: ClusterState, now: int, gate: BundleGate, detail: str, fault: str | None = None) -> Cycle:
    """Return a cycle without decisions, held by `gate`."""
    state.changes.balancer = True
    profile = state.policies.profile if state.policies else "4.x"
    held = BundleAnswer(
        operation="shed",
        action="hold",
        strategy="none",
        profile=profile,
        gate=gate.value,
        reason=detail[:_MAX_SAID],
        readings=[BundleReading(gate=gate.value, passed=False, detail=detail[:_MAX_SAID])],
        state=state.memory,
    )
    return Cycle(now, tuple(_live_reports(state)), held, held.model_copy(update={"operation": "split"}), (), fault)


def _take_decisions(state: ClusterState, now: int, *answers: BundleAnswer) -> tuple[CycleDecision, ...]:
    """Open the decisions of a cycle, but for bundles that have one open already."""
    decided = list[CycleDecision]()
    for answer in answers:
        for decision in answer.decisions:
            if decision.bundle in state.open:
                continue
            state.decisions += 1
            identity = digest(
                [
                    state.name,
                    FAMILY,
                    decision.action,
                    decision.bundle,
                    decision.destination_broker,
                    state.decisions,
                    now,
                ]
            )
            opened = OpenBundleDecision(identity, decision.action, now)
            state.open_decision(decision.bundle, opened, decision.source_broker, decision.destination_broker)
            decided.append(CycleDecision(identity, state.decisions, decision, answer))
    return tuple(decided)


def snapshot_of(state: ClusterState, now: int, operation: Literal["shed", "split"]) -> BundleSnapshot:
    """Return the input of a cycle, in the form that `anabranch decisions decide` reads."""
    reports, policies = project_reports(_live_reports(state), state.moves), state.policies
    local = {name: entry.data for name, entry in reports.items() if isinstance(entry, LocalBrokerReport)}
    extensible = {name: entry for name, entry in reports.items() if isinstance(entry, BrokerLoadReport)}
    counts: dict[str, Count] = {
        name: len(entry.owners) for name, entry in sorted(state.ownership.items()) if entry.owners
    }
    values: dict[str, Any] = {
        "cluster": state.name,
        "now": now,
        "operation": operation,
        "seed": _cycle_seed(state.name, now),
        "brokers": local,
        "bundles": dict(sorted(state.averages.items())),
        "ownership": _owners_of_bundles(state, local),
        "broker_load_data": {name: entry.data for name, entry in extensible.items()},
        "top_bundles": _top_bundles(state, extensible, operation),
        "available_brokers": None if state.brokers is None else dict(sorted(state.brokers.brokers.items())),
        "namespace_bundles": counts,
        "state": state.memory,
    }
    if policies is not None:
        values |= {
            "profile": policies.profile,
            "load_manager": policies.load_manager,
            "configuration": policies.configuration,
            "isolation_policies": policies.isolation_policies,
            "anti_affinity_groups": policies.anti_affinity_groups,
            "failure_domains": policies.failure_domains,
            "namespace_bundles": counts | policies.namespace_bundles,
        }
    return construct_model(BundleSnapshot, values)


def _top_bundles(
    state: ClusterState, reports: Mapping[str, BrokerLoadReport], operation: Literal["shed", "split"]
) -> dict[str, TopBundlesLoadData]:
    """Return bundles that extensible brokers may shed, or to split all reported; `forced` ones are chosen."""
    top, policies = {name: entry.top_bundles for name, entry in reports.items()}, state.policies
    if operation == "split" or policies is None:
        return top
    unchosen = {name: top[name] for name, entry in reports.items() if not entry.forced}
    return top | choose_top_bundles(
        unchosen, policies.configuration, policies.profile, policies.isolation_policies, policies.anti_affinity_groups
    )


def _decide_cycle(state: ClusterState, now: int, operation: Literal["shed", "split"]) -> BundleAnswer:
    """Decide; bundles that wait for an outcome are shed as little as recently unloaded ones."""
    snapshot, unloaded = snapshot_of(state, now, operation), state.memory.recently_unloaded_bundles
    conf = Configuration(snapshot.configuration, snapshot.profile)
    # A grace period may end before the wait for an outcome does.
    since = now - conf.number("loadBalancerSheddingGracePeriodMinutes") * 60_000
    waiting = {bundle: now for bundle in state.open if bundle not in unloaded or unloaded[bundle] < since}
    if waiting:
        memory = state.memory.model_copy(update={"recently_unloaded_bundles": unloaded | waiting})
        snapshot = snapshot.model_copy(update={"state": memory})
    answer = decide(snapshot)
    remaining = {bundle: at for bundle, at in answer.state.recently_unloaded_bundles.items() if bundle not in waiting}
    state.memory = answer.state.model_copy(update={"bundles": {}, "recently_unloaded_bundles": remaining})
    return answer


def _cycle_seed(cluster: str, now: int) -> int:
    """Return the seed for random choices; it varies by cycle, so that no broker is always favoured."""
    return int(digest([cluster, now], size=7), 16)


def _forget_old(state: ClusterState, now: int) -> None:
    """Drop decisions, moves, reports and namespaces that are too old."""
    for bundle in [bundle for bundle, entry in state.open.items() if now - entry.at > MAX_OPEN_MS]:
        del state.open[bundle]
        state.changes.balancer = True
    for bundle in [bundle for bundle, entry in state.moves.items() if now - entry.at > MAX_OPEN_MS]:
        state.cancel_move(bundle)
    brokers = state.brokers.brokers if state.brokers else {}
    for name, entry in list(state.reports.items()):
        newest = entry.pending or entry.in_effect
        if name not in brokers and (newest is None or now - newest.last_update > MAX_SILENCE_MS):
            del state.reports[name]
            state.changes.reports.add(name)
    heard_at = max([entry.at for entry in (state.brokers, state.policies) if entry is not None], default=0)
    for namespace, ownership in list(state.ownership.items()):
        has_owner = any(owner is not None for owner in ownership.owners.values())
        if heard_at - ownership.at > (MAX_UNMENTIONED_MS if has_owner else MAX_UNOWNED_MS):
            del state.ownership[namespace]
            state.changes.namespaces.add(namespace)
    _forget_brokers(state)


def _forget_brokers(state: ClusterState) -> None:
    """Drop memories of removed brokers, because pod names are never reused."""
    memory, brokers = state.memory, state.reports.keys() | (state.brokers.brokers.keys() if state.brokers else set())
    hits = memory.avg_shedder
    remembered = (
        memory.recently_unloaded_brokers,
        memory.broker_avg_resource_usage,
        memory.broker_avg_resource_usage_with_weight,
        hits.broker_hit_count_for_low,
        hits.broker_hit_count_for_high,
    )
    if all(averages.keys() <= brokers for averages in remembered):
        return
    unloaded, usage, weighted, low, high = (
        {name: value for name, value in averages.items() if name in brokers} for averages in remembered
    )
    state.memory = memory.model_copy(
        update={
            "recently_unloaded_brokers": unloaded,
            "broker_avg_resource_usage": usage,
            "broker_avg_resource_usage_with_weight": weighted,
            "avg_shedder": hits.model_copy(update={"broker_hit_count_for_low": low, "broker_hit_count_for_high": high}),
        }
    )
    state.changes.balancer = True


def _count_reports(state: ClusterState) -> list[str]:
    """Put pending reports that pass the rule into effect; return their brokers."""
    policies, sampled = state.policies, list[str]()
    conf = Configuration(policies.configuration, policies.profile) if policies else Configuration({})
    for name, reports in sorted(state.reports.items()):
        if (new := reports.pending) is None:
            continue
        last = (
            None
            if reports.in_effect is None or type(reports.in_effect) is not type(new)
            else load_of(reports.in_effect, conf)
        )
        if is_reported(last, load_of(new, conf), new.forced):
            reports.in_effect = new
            sampled.append(name)
        reports.processed_to, reports.pending = new.last_update, None
        state.changes.reports.add(name)
    return sampled


def load_of(report: Report, conf: Configuration) -> LoadOfReport:
    """Return the values of a report that the report rule compares."""
    if isinstance(report, LocalBrokerReport):
        total = with_totals(report.broker, report.data)
        usage = weighted_max(report.data, conf)
        return LoadOfReport(report.last_update, usage, total.rate, total.throughput, len(total.bundles))
    data = report.data
    rate, throughput = data.msg_rate_in + data.msg_rate_out, data.msg_throughput_in + data.msg_throughput_out
    return LoadOfReport(report.last_update, max_usage(data, conf), rate, throughput, data.bundle_count)


def _live_reports(state: ClusterState) -> dict[str, Report]:
    """Return the reports in effect of live brokers, by name; of all brokers while none are listed as live."""
    live = None if state.brokers is None else state.brokers.brokers
    return {
        name: reports.in_effect
        for name, reports in sorted(state.reports.items())
        if reports.in_effect is not None and (live is None or name in live)
    }


def _take_samples(state: ClusterState, sampled: list[str], now: int) -> None:
    """Update the averages of bundles of brokers with new reports; drop those of removed bundles."""
    reports = _live_reports(state)
    local = {name: report.data for name in sampled if isinstance(report := reports.get(name), LocalBrokerReport)}
    preallocated = {name: bundles for name, bundles in state.memory.preallocated_bundle_data.items() if name in reports}
    if len(preallocated) < len(state.memory.preallocated_bundle_data):
        state.memory = state.memory.model_copy(update={"preallocated_bundle_data": preallocated})
    if local:
        averages = _leaders_averages(reports, sampled) | state.averages
        answer = decide(
            construct_model(
                BundleSnapshot,
                {
                    "cluster": state.name,
                    "now": now,
                    "operation": "average",
                    "load_manager": "modular",
                    "brokers": local,
                    "bundles": averages,
                    "state": state.memory,
                },
            )
        )
        state.averages.update(answer.state.bundles)
        state.changes.averages.update(answer.state.bundles)
        state.memory = answer.state.model_copy(update={"bundles": {}})
    reported = {
        bundle
        for report in reports.values()
        if isinstance(report, LocalBrokerReport)
        for bundle in report.data.last_stats
    }
    if len(state.averages) > 2 * len(reported) + _SPARE_AVERAGES:
        removed = [bundle for bundle in state.averages if bundle not in reported]
        for bundle in removed:
            del state.averages[bundle]
        state.changes.averages.update(removed)


def _leaders_averages(reports: dict[str, Report], sampled: list[str]) -> dict[str, BundleData]:
    """Averages that came with reports: what a bundle starts with that has none here."""
    averages: dict[str, BundleData] = {}
    for name in sampled:
        if isinstance(report := reports.get(name), LocalBrokerReport) and report.averages:
            averages |= report.averages
    return averages


def _settle_moves(state: ClusterState) -> None:
    """Drop the moves that both brokers' reports show."""
    reports = _live_reports(state)
    for bundle, move in list(state.moves.items()):
        if all(move.is_shown_by(bundle, reports.get(broker)) for broker in (move.source, move.destination)):
            del state.moves[bundle]
            state.changes.balancer = True


def _owners_of_bundles(state: ClusterState, local: dict[str, Any]) -> dict[str, str] | None:
    """Return bundle to broker: from ownership messages, or for other namespaces from the reports."""
    if not state.ownership:
        return None
    owners = {
        bundle: broker
        for broker, data in local.items()
        for bundle in (data.last_stats if data.bundles is None else data.bundles)
        if bundle.rpartition("/")[0] not in state.ownership
    }
    for namespace, ownership in sorted(state.ownership.items()):
        owners |= {
            f"{namespace}/{part}": broker for part, broker in sorted(ownership.owners.items()) if broker is not None
        }
    return owners | {bundle: move.destination for bundle, move in state.moves.items() if bundle in owners}
