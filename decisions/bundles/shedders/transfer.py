"""TransferShedder of the extensible load manager: fullest brokers to emptiest (PIP-192, PIP-220).

One cycle: the brokers' statistics, then whether the cluster was out of balance for enough cycles in a row, then pairs
from the outside in. What a swap brings back counts in the bookkeeping only with `loadBalancerDebugModeEnabled`, as
upstream.
"""

from dataclasses import dataclass
from math import sqrt

from decisions.bundles import candidates
from decisions.bundles.averages import total_throughput
from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.usage import weighted_max
from schemas.bundles import BundleDecision, TopBundle

SWAP_SHARE = 0.75


@dataclass(slots=True)
class TransferOutcome:
    """Outcomes of a cycle, in upstream's words."""

    decisions: list[BundleDecision]
    label: str
    reason: str
    average: float = 0.0
    deviation: float = 0.0


@dataclass(slots=True)
class _Loads:
    """The brokers by load, and the spread, which each transfer changes."""

    usage: dict[str, float]
    ordered: list[str]
    squares: float
    average: float
    deviation: float
    top: int
    bottom: int = 0
    shed: int = 0


def live_brokers(cluster: ClusterView) -> list[str]:
    """The registry's brokers; without a registry those with a report."""
    available = cluster.snapshot.available_brokers
    return sorted(cluster.snapshot.broker_load_data if available is None else available)


def usage_of(cluster: ClusterView, broker: str) -> float:
    """The averaged weighted maximum that a broker reports."""
    data = cluster.snapshot.broker_load_data[broker]
    return weighted_max(data, cluster.configuration) if data.weighted_max_e_m_a is None else data.weighted_max_e_m_a


def _throughput_average(cluster: ClusterView, broker: str) -> float:
    data = cluster.snapshot.broker_load_data[broker]
    return data.msg_throughput_e_m_a if data.msg_throughput_e_m_a is not None else _bytes(cluster, broker)


def _bytes(cluster: ClusterView, broker: str) -> float:
    data = cluster.snapshot.broker_load_data[broker]
    return data.msg_throughput_in + data.msg_throughput_out


def shed_transfers(cluster: ClusterView) -> TransferOutcome:
    """The transfers of one cycle, or why there are none."""
    if (skip := _unfit_reason(cluster)) is not None:
        return TransferOutcome([], "Skip", skip)
    loads = _statistics(cluster)
    average, deviation = loads.average, loads.deviation
    if not _count_hit(cluster, loads):
        return TransferOutcome([], "Skip", "HitCount", average, deviation)
    decisions, reason, no_data, few = _transfers(cluster, loads)
    if not decisions:
        skip = "NoLoadData" if no_data else "NoBundles" if few else "HitCount"
        return TransferOutcome([], "Skip", skip, average, deviation)
    cluster.memory.transfer_hits = 0
    for decision in decisions:
        cluster.memory.unloaded_bundles[decision.bundle] = cluster.now
        if decision.source_broker is not None:
            cluster.memory.unloaded_brokers[decision.source_broker] = cluster.now
    return TransferOutcome(decisions, "Success", reason, average, deviation)


def _unfit_reason(cluster: ClusterView) -> str | None:
    """Return why the load data cannot be used, or None."""
    conf, account, unloaded = cluster.configuration, cluster.account, cluster.memory.unloaded_brokers
    oldest = conf.number("loadBalancerBrokerLoadDataTTLInSeconds") * 1000
    delay = conf.number("loadBalanceSheddingDelayInSeconds") * 1000
    usable, outdated = 0, False
    for broker, data in sorted(cluster.snapshot.broker_load_data.items()):
        if not account.measured(BundleGate.FRESH, cluster.now - data.updated_at, "<=", oldest, broker):
            outdated = True
            continue
        if broker in unloaded:
            elapsed = data.updated_at - unloaded[broker]
            if not account.measured(BundleGate.COOL_DOWN, elapsed, ">=", delay, broker):
                return "CoolDown"
            del unloaded[broker]
        usable += 1
    if not usable:
        account.held(BundleGate.LOAD_DATA)
        return "OutDatedData" if outdated else "NoBrokers"
    missing = [broker for broker in live_brokers(cluster) if broker not in cluster.snapshot.broker_load_data]
    for broker in missing:
        account.held(BundleGate.LOAD_DATA, broker)
    return "NoLoadData" if missing else None


def _statistics(cluster: ClusterView) -> _Loads:
    """Spread over the brokers with fresh data. As upstream, one that is too old still stands in the order."""
    oldest = cluster.configuration.number("loadBalancerBrokerLoadDataTTLInSeconds") * 1000
    reported = cluster.snapshot.broker_load_data
    usage = {broker: usage_of(cluster, broker) for broker in reported}
    fresh = [usage[broker] for broker in sorted(usage) if cluster.now - reported[broker].updated_at <= oldest]
    squares = sum(load * load for load in fresh)
    average = sum(fresh) / len(fresh)
    deviation = sqrt(max(0.0, squares / len(fresh) - average * average))
    ordered = sorted(usage, key=lambda broker: (usage[broker], broker))
    return _Loads(usage, ordered, squares / len(fresh), average, deviation, len(ordered) - 1)


def _underloaded(cluster: ClusterView, loads: _Loads) -> bool:
    low, high = loads.ordered[loads.bottom], loads.ordered[loads.top]
    share = min(0.5, max(0.0, cluster.configuration.number("loadBalancerBrokerLoadTargetStd") / 2))
    if loads.usage[low] < loads.average * share:
        return True
    return _throughput_average(cluster, low) < _throughput_average(cluster, high) * share


def _overloaded(cluster: ClusterView, loads: _Loads) -> bool:
    conf, high = cluster.configuration, loads.ordered[loads.top]
    threshold = conf.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    target = conf.number("loadBalancerBrokerLoadTargetStd")
    return loads.usage[high] > threshold and loads.usage[high] > loads.average + target


def _reason_to_move(cluster: ClusterView, loads: _Loads) -> str | None:
    """Return why load should move: the spread, else an idle broker, else a full one."""
    target = cluster.configuration.number("loadBalancerBrokerLoadTargetStd")
    spread = loads.deviation > target
    low, high = loads.ordered[loads.bottom], loads.ordered[loads.top]
    why = (
        "Overloaded"
        if spread
        else "Underloaded"
        if _underloaded(cluster, loads)
        else "Overloaded"
        if _overloaded(cluster, loads)
        else None
    )
    broker = low if why == "Underloaded" else high
    detail = "spread of the brokers' usage" if spread or why is None else f"{why.lower()}, though the spread is small"
    passed = cluster.account.measured(BundleGate.UNBALANCED, loads.deviation, ">", target, broker, detail=detail)
    if why is not None and not passed:
        cluster.account.passes(BundleGate.UNBALANCED, True, broker, detail=detail)
    return why


def _count_hit(cluster: ClusterView, loads: _Loads) -> bool:
    memory = cluster.memory
    memory.transfer_hits = min(2**31 - 1, memory.transfer_hits + 1) if _reason_to_move(cluster, loads) else 0
    limit = cluster.configuration.number("loadBalancerSheddingConditionHitCountThreshold")
    return cluster.account.measured(BundleGate.HIT_COUNT, memory.transfer_hits, ">", limit)


def _transfers(cluster: ClusterView, loads: _Loads) -> tuple[list[BundleDecision], str, int, int]:
    """Return the transfers, the reason of the first, and the numbers of brokers that gave none.

    One number is of those without data, the other of those with too few bundles.
    """
    account, top_bundles = cluster.account, cluster.snapshot.top_bundles
    most = cluster.configuration.number("loadBalancerMaxNumberOfBrokerSheddingPerCycle")
    decisions, chosen, first_reason, no_data, few = list[BundleDecision](), set[tuple[str, str]](), "", 0, 0
    while loads.bottom < loads.top:
        if not account.measured(BundleGate.BROKERS_PER_CYCLE, loads.shed, "<", most, loads.ordered[loads.top]):
            break
        if (reason := _reason_to_move(cluster, loads)) is None:
            break
        high, low = loads.ordered[loads.top], loads.ordered[loads.bottom]
        loads.top -= 1
        bundles = top_bundles[high].top_bundles_load_data if high in top_bundles else []
        if not account.measured(BundleGate.TOP_BUNDLES, len(bundles), ">", 1, high):
            no_data, few = (no_data + 1, few) if not bundles else (no_data, few + 1)
            continue
        transfers, moved, gained = _transfer_pair(cluster, loads, high, low, reason)
        if moved <= 0:
            few += 1
            continue
        first_reason = first_reason or reason
        for decision in transfers:
            if (decision.source_broker or "", decision.bundle) not in chosen:
                chosen.add((decision.source_broker or "", decision.bundle))
                decisions.append(decision)
        _offload_broker(cluster, loads, high, low, moved - gained)
    return decisions, first_reason, no_data, few


def _offload_broker(cluster: ClusterView, loads: _Loads, high: str, low: str, moved: float) -> None:
    total = _bytes(cluster, high)
    part = moved * loads.usage[high] / total if total > 0 else 0.0
    before = loads.usage[high] ** 2 + loads.usage[low] ** 2
    after = max(0.0, loads.usage[high] - part) ** 2 + (loads.usage[low] + part) ** 2
    oldest = cluster.configuration.number("loadBalancerBrokerLoadDataTTLInSeconds") * 1000
    brokers = sum(cluster.now - data.updated_at <= oldest for data in cluster.snapshot.broker_load_data.values())
    loads.squares += (after - before) / brokers
    loads.deviation = sqrt(abs(loads.squares - loads.average**2))
    loads.shed += 1
    loads.bottom += 1


def _transfer_pair(
    cluster: ClusterView, loads: _Loads, high: str, low: str, reason: str
) -> tuple[list[BundleDecision], float, float]:
    """Return the transfers of one pair, and the throughput that the fuller broker loses and gains."""
    conf, account = cluster.configuration, cluster.account
    transfer, debug = conf.on("loadBalancerTransferEnabled"), conf.on("loadBalancerDebugModeEnabled")
    usage = loads.usage[high]
    target = _bytes(cluster, high) * ((usage - loads.usage[low]) / 2) / usage if usage > 0 else 0.0
    top_bundles = cluster.snapshot.top_bundles
    receivers = list(top_bundles[low].top_bundles_load_data) if low in top_bundles else []
    bundles = top_bundles[high].top_bundles_load_data
    transfers, moved, gained, remaining = list[BundleDecision](), 0.0, 0.0, len(bundles)
    for stats in bundles:
        if not _may_leave(cluster, stats.bundle_name, high, low):
            continue
        if not account.measured(BundleGate.SOLE_BUNDLE, remaining, ">", 1, high, stats.bundle_name):
            break
        load = total_throughput(stats.stats)
        swapped = list[TopBundle]()
        if not account.measured(BundleGate.FITS, moved - gained + load, "<=", target, high, stats.bundle_name):
            shift = moved - gained + load
            if not transfer or not _swap_bundles(cluster, receivers, high, low, shift, swapped):
                break
        for other in swapped:
            transfers.append(_unload_decision(other.bundle_name, low, high, reason))
            gained += total_throughput(other.stats) if debug else 0.0
        transfers.append(_unload_decision(stats.bundle_name, high, low if transfer else None, reason))
        moved += load
        remaining -= 1
    return transfers, moved, gained


def _unload_decision(bundle: str, source: str, destination: str | None, reason: str) -> BundleDecision:
    return BundleDecision(
        action="unload", bundle=bundle, source_broker=source, destination_broker=destination, reason=reason
    )


def _may_leave(cluster: ClusterView, bundle: str, high: str, low: str) -> bool:
    account, namespace = cluster.account, candidates.namespace_of(bundle)
    owners = cluster.snapshot.ownership
    if owners is not None and owners.get(bundle) != high:
        account.held(BundleGate.OWNER, high, bundle, owners.get(bundle))
        return False
    if namespace in cluster.configuration.names("loadBalancerSheddingExcludedNamespaces"):
        account.held(BundleGate.EXCLUDED, high, bundle)
        return False
    if bundle in cluster.memory.unloaded_bundles:
        account.held(BundleGate.RECENTLY_UNLOADED, high, bundle)
        return False
    if candidates.stays_isolated(cluster, bundle, high):
        return False
    return _is_transferable(cluster, bundle, high, low)


def _is_transferable(cluster: ClusterView, bundle: str, source: str, destination: str) -> bool:
    passed = True
    if candidates.has_policies(cluster, bundle):
        passed = cluster.configuration.on("loadBalancerSheddingBundlesWithPoliciesEnabled")
        # Without owners nobody knows where the other bundles of a group are: reports name the busiest alone.
        is_grouped = candidates.namespace_of(bundle) in cluster.snapshot.anti_affinity_groups
        passed = passed and not (is_grouped and cluster.snapshot.ownership is None)
        passed = passed and candidates.unload_spreads(cluster, bundle, source, live_brokers(cluster))
    passed = passed and destination in filter_brokers(cluster, bundle)
    return cluster.account.passes(BundleGate.TRANSFERABLE, passed, source, bundle, f"to {destination}")


def filter_brokers(cluster: ClusterView, bundle: str, *, assigning: bool = False) -> list[str]:
    """The live brokers that the extensible manager's filters leave, in their order.

    Empty where a filter fails on a version that it cannot read; `assigning`: as upstream, that filter is left out then.
    """
    registry = cluster.snapshot.available_brokers or {}
    brokers = live_brokers(cluster)
    brokers = candidates.isolated_brokers(cluster, bundle, brokers)
    classes = {name: registry[name].load_manager_class_name if name in registry else None for name in brokers}
    brokers = candidates.same_class(cluster, bundle, classes)
    versions = {name: registry[name].broker_version if name in registry else None for name in brokers}
    latest = candidates.latest_version(cluster, bundle, versions)
    if latest is None and not assigning:
        return []
    brokers = brokers if latest is None else latest
    most = cluster.configuration.whole("loadBalancerBrokerMaxTopics")
    loads = cluster.snapshot.broker_load_data
    remaining = list[str]()
    for name in brokers:
        topics = loads[name].topics if name in loads else 0
        if topics < most or cluster.account.measured(BundleGate.TOPIC_CAP, topics, "<", most, name, bundle):
            remaining.append(name)
    return candidates.spread_over_domains(cluster, bundle, remaining) if remaining else remaining


def _swap_bundles(
    cluster: ClusterView, receivers: list[TopBundle], high: str, low: str, shift: float, accepted: list[TopBundle]
) -> bool:
    """Takes bundles of the emptier broker in return, until both would be below the fuller one of now.

    What is looked at leaves `receivers`: the next bundle of the pair goes on from there.
    """
    most = _bytes(cluster, high)
    new_high, new_low = most - shift, _bytes(cluster, low) + shift
    while receivers:
        stats = receivers.pop(0)
        if not _is_transferable(cluster, stats.bundle_name, low, high):
            continue
        load = total_throughput(stats.stats)
        if new_high + load < most and new_low - load < most:
            accepted.append(stats)
            new_high, new_low = new_high + load, new_low - load
            if new_low <= new_high < most * SWAP_SHARE:
                return True
    accepted.clear()
    return False
