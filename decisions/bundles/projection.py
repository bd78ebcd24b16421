"""Projection of brokers: last reported usage and bundles, plus the moves that reports do not show yet.

Stage: between the view of a cycle and the strategies of profile `default`; the same for both load managers. A move
counts at once and until a report from after it has settled says where the bundle is.
"""

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import TypeAlias

from decisions.bundles.averages import DEFAULT_BUNDLE
from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.projected import Load, ProjectedBroker
from decisions.bundles.usage import percent
from schemas.bundles import BrokerLoadData, GainCost, GainMove, LocalBrokerData, TopicLoad

SETTLED_MS = 60_000
"""Time after a move from which on reports show where the bundle is."""
KNOWN_FROM = 0.10
"""Usage from which on a broker's own cost per message or byte counts: below, most of it is idle work."""
SAMPLES, BAND, NOISE = 10, 0.05, 0.15
"""Reports in a mean of costs; error of one reading, in usage; difference in usage that is more than noise."""
MOST = 1e15
"""Maximum of any number that is kept between cycles."""

_SIGNALS = (
    ("cpu", "loadBalancerCPUResourceWeight"),
    ("bandwidth_in", "loadBalancerBandwidthInResourceWeight"),
    ("bandwidth_out", "loadBalancerBandwidthOutResourceWeight"),
)
"""Resource and weight of each number in `Load`."""

_Report: TypeAlias = LocalBrokerData | BrokerLoadData


def project_loads(cluster: ClusterView) -> dict[str, ProjectedBroker]:
    """Return brokers with a report by name, once per cycle; settled moves leave the memory."""
    if cluster.cache.projected is None:
        cluster.cache.projected = _project_brokers(cluster)
    return cluster.cache.projected


def _project_brokers(cluster: ClusterView) -> dict[str, ProjectedBroker]:
    reports: Mapping[str, _Report]
    if cluster.configuration.extensible:
        reports = _fresh_loads(cluster)
    else:
        reports = {name: report.data for name, report in cluster.reports.items()}
    totals = {name: _total_load(cluster, name) for name in reports}
    shared = [_shared_cost(reports, totals, index) for index in range(len(_SIGNALS))]
    projected = {name: _project_broker(cluster, name, data, totals[name], shared) for name, data in reports.items()}
    for broker in set(cluster.memory.gain_costs) - set(projected):
        del cluster.memory.gain_costs[broker]
    _apply_moves(cluster, projected, {name: _updated_at(data) for name, data in reports.items()})
    return projected


def _fresh_loads(cluster: ClusterView) -> dict[str, BrokerLoadData]:
    """Return the load data of live brokers, unless it is too old."""
    live, fresh = cluster.snapshot.available_brokers, dict[str, BrokerLoadData]()
    oldest = cluster.configuration.number("loadBalancerBrokerLoadDataTTLInSeconds") * 1000
    for name, data in sorted(cluster.snapshot.broker_load_data.items()):
        if (live is None or name in live) and cluster.account.measured(
            BundleGate.FRESH, cluster.now - data.updated_at, "<=", oldest, name
        ):
            fresh[name] = data
    return fresh


def _project_broker(
    cluster: ClusterView, name: str, data: _Report, total: Load, shared: list[float]
) -> ProjectedBroker:
    conf = cluster.configuration
    signals, costs = list[float](), list[float]()
    for index, (signal, weight_of) in enumerate(_SIGNALS):
        resource, weight = getattr(data, signal), conf.number(weight_of)
        used = percent(resource) / 100 * weight
        usual = shared[index] / resource.limit * weight if resource.limit > 0 else 0.0
        is_measured = total[index] > 0 and used >= KNOWN_FROM * weight and used > 0
        cost = min(used / total[index] if is_measured else usual, MOST)
        if index == 0:
            cost = (
                _average_cost(cluster, name, cost if is_measured else None, total[0], usual, _updated_at(data)) or cost
            )
            used = cost * total[0] if is_measured else used
        signals.append(used)
        costs.append(cost)
    memory = percent(data.direct_memory) / 100 * conf.number("loadBalancerDirectMemoryResourceWeight")
    return ProjectedBroker(
        name, signals, (costs[0], costs[1], costs[2]), memory, _bundles(cluster, name), _count_bundles(cluster, name)
    )


def load_of(stats: TopicLoad) -> Load:
    """Return a bundle's load in the units of the signals."""
    return stats.msg_rate_in + stats.msg_rate_out, stats.msg_throughput_in, stats.msg_throughput_out


def mean_load(brokers: Iterable[ProjectedBroker]) -> Load:
    """Return the mean load of a bundle, assumed for bundles of unknown load."""
    if not (loads := [load for broker in brokers for load in broker.bundles.values()]):
        return load_of(DEFAULT_BUNDLE.short_term_data)
    messages, coming, going = (sum(part) / len(loads) for part in zip(*loads, strict=True))
    return messages, coming, going


def _total_load(cluster: ClusterView, broker: str) -> Load:
    if not cluster.configuration.extensible:
        report = cluster.reports[broker]
        return report.rate, report.msg_throughput_in, report.msg_throughput_out
    data = cluster.snapshot.broker_load_data[broker]
    return data.msg_rate_in + data.msg_rate_out, data.msg_throughput_in, data.msg_throughput_out


def _shared_cost(reports: Mapping[str, _Report], totals: Mapping[str, Load], index: int) -> float:
    """Return the use of a resource by all brokers, in its own unit, per unit of load."""
    used, load = 0.0, 0.0
    for name, data in reports.items():
        resource = getattr(data, _SIGNALS[index][0])
        if resource.limit > 0:
            used, load = used + resource.usage, load + totals[name][index]
    return min(used / load, MOST) if load > 0 else 0.0


def _average_cost(
    cluster: ClusterView, broker: str, cost: float | None, load: float, usual: float, updated: int
) -> float | None:
    """Return the cost of a message to a broker's CPU, less noise; None where too little is used to tell.

    The mean over its last reports. Where that differs from the cluster's cost by no more than noise, the cluster's cost
    counts; a reading or a broker that differs by more is believed.
    """
    costs = cluster.memory.gain_costs
    average = costs.get(broker)
    if cost is None:
        costs.pop(broker, None)
        return None
    if average is None or average.last_update != updated or updated == 0:
        n = min(average.samples + 1, SAMPLES) if average else 1
        mean = average.cost + (cost - average.cost) / n if average else cost
        if abs(mean - cost) * load > NOISE:
            n, mean = 1, cost
        average = costs[broker] = GainCost(cost=mean, samples=n, last_update=updated)
    if abs(average.cost - usual) * load > NOISE:
        return average.cost
    band = BAND / sqrt(average.samples) / load
    return min(max(usual, average.cost - band), average.cost + band)


def _bundles(cluster: ClusterView, broker: str) -> dict[str, Load]:
    if cluster.configuration.extensible:
        top = cluster.snapshot.top_bundles.get(broker)
        return {stats.bundle_name: load_of(stats.stats) for stats in top.top_bundles_load_data} if top else {}
    report, loads = cluster.reports[broker], dict[str, Load]()
    for bundle in report.bundles:
        if bundle in report.data.last_stats:
            loads[bundle] = load_of(report.data.last_stats[bundle])
        elif bundle in cluster.bundles:
            loads[bundle] = load_of(cluster.bundles[bundle].short_term_data)
    return loads


def _count_bundles(cluster: ClusterView, broker: str) -> int:
    if cluster.configuration.extensible:
        return cluster.snapshot.broker_load_data[broker].bundle_count
    return len(cluster.reports[broker].bundles)


def _updated_at(data: _Report) -> int:
    return data.last_update if isinstance(data, LocalBrokerData) else data.updated_at


def _apply_moves(cluster: ClusterView, brokers: dict[str, ProjectedBroker], updated: Mapping[str, int]) -> None:
    """Correct reports from before a move has settled; forget the move once all know it, or know better.

    A bundle is on one broker. If a third one reports it, that report is older than the move, or the move ended there.
    """
    moves = cluster.memory.gain_moves
    oldest = cluster.now - cluster.configuration.number("loadBalancerSheddingGracePeriodMinutes") * 60_000
    for bundle, move in sorted(moves.items()):
        source, destination = brokers.get(move.source or ""), brokers.get(move.destination)
        stale_source = source is not None and updated[source.name] <= move.at + SETTLED_MS
        stale_destination = destination is not None and updated[destination.name] <= move.at + SETTLED_MS
        failed = source is not None and not stale_source and bundle in source.bundles
        third = [
            broker
            for broker in brokers.values()
            if broker is not source and broker is not destination and bundle in broker.bundles
        ]
        failed = failed or any(updated[broker.name] > move.at + SETTLED_MS for broker in third)
        if destination is not None and not stale_destination and not cluster.configuration.extensible:
            failed = failed or bundle not in destination.bundles
        if destination is None or failed or move.at < oldest or not (stale_source or stale_destination):
            del moves[bundle]
            continue
        if source is not None and stale_source and bundle in source.bundles:
            source.remove_bundle(bundle)
        for broker in third:
            broker.remove_bundle(bundle)
        if stale_destination and bundle not in destination.bundles:
            destination.add_bundle(bundle, (move.messages, move.bytes_in, move.bytes_out))


def move_bundle(cluster: ClusterView, bundle: str, source: str | None, destination: str, load: Load) -> None:
    """Move a bundle, or assign one without a source; record the move until reports show it."""
    brokers = project_loads(cluster)
    if source is not None:
        brokers[source].remove_bundle(bundle)
    brokers[destination].add_bundle(bundle, load)
    cluster.memory.gain_moves[bundle] = GainMove(
        source=source,
        destination=destination,
        at=cluster.now,
        messages=min(load[0], MOST),
        bytes_in=min(load[1], MOST),
        bytes_out=min(load[2], MOST),
    )
