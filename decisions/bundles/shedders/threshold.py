"""ThresholdShedder: brokers with averaged usage far above the mean give. Default from 2.10 to 4.x.

`lowerBoundarySheddingEnabled` lets the fullest broker give to an idle one. As upstream, that step runs the average a
second time in the same cycle.
"""

from __future__ import annotations

from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import MIB
from decisions.bundles.shedders.greedy import has_several, pick_until
from decisions.bundles.usage import weighted_max_within_limit

MARGIN, LOWER_BOUNDARY_SHARE = 0.05, 0.5


def shed_threshold(cluster: ClusterView) -> dict[str, list[str]]:
    """The bundles to unload, by broker."""
    conf, memory = cluster.configuration, cluster.memory
    threshold = conf.number("loadBalancerBrokerThresholdShedderPercentage") / 100
    least = conf.number("loadBalancerBundleUnloadMinThroughputThreshold") * MIB
    average = _update_averages(cluster)
    picked = dict[str, list[str]]()
    if not cluster.account.measured(BundleGate.HAS_TRAFFIC, average, ">", 0, detail="mean usage of the brokers"):
        return picked
    for broker, report in cluster.reports.items():
        usage = memory.threshold_usage[broker]
        if not cluster.account.measured(BundleGate.ABOVE_AVERAGE, usage, ">=", average + threshold, broker):
            continue
        target = report.throughput * (usage - average - threshold + MARGIN)
        if not cluster.account.measured(BundleGate.MIN_THROUGHPUT, target, ">=", least, broker):
            continue
        if has_several(cluster, broker):
            bundles = pick_until(cluster, broker, target)
            if bundles:
                picked[broker] = bundles
    if not picked and conf.on("lowerBoundarySheddingEnabled"):
        return _lower_boundary(cluster, threshold, least)
    return picked


def _lower_boundary(cluster: ClusterView, threshold: float, least: float) -> dict[str, list[str]]:
    average = _update_averages(cluster)
    usages = cluster.memory.threshold_usage
    floor = average - threshold
    idle = [broker for broker in cluster.reports if usages[broker] < floor]
    givers = [
        broker for broker, report in cluster.reports.items() if usages[broker] > floor and len(report.bundles) > 1
    ]
    lowest = min(cluster.reports, key=lambda broker: usages[broker])
    cluster.account.measured(BundleGate.LOWER_BOUNDARY, usages[lowest], "<", floor, lowest)
    if not idle or not givers:
        return {}
    fullest = max(givers, key=lambda broker: usages[broker])
    target = cluster.reports[fullest].throughput * threshold * LOWER_BOUNDARY_SHARE
    if not cluster.account.measured(BundleGate.MIN_THROUGHPUT, target, ">=", least, fullest):
        return {}
    bundles = pick_until(cluster, fullest, target)
    return {fullest: bundles} if bundles else {}


def _update_averages(cluster: ClusterView) -> float:
    """Moves every broker's average by one step, and answers the mean of all."""
    history = cluster.configuration.number("loadBalancerHistoryResourcePercentage")
    starts_there = cluster.configuration.on("fix13136")
    usages = cluster.memory.threshold_usage
    total = 0.0
    for broker, report in cluster.reports.items():
        now = cluster.weighted(broker)
        if now > 1.0:
            now = weighted_max_within_limit(report.data, cluster.configuration)
        before = usages.get(broker, None if starts_there else 0.0)
        usages[broker] = now if before is None else history * before + (1 - history) * now
        total += usages[broker]
    return total / len(cluster.reports) if cluster.reports else 0.0
