"""OverloadShedder and ThresholdShedder: brokers over a threshold give their largest bundles first.

Both pick by throughput until the sum reaches a target: they overshoot by up to one bundle, and pick at least one.
"""

from decisions.bundles.averages import total_throughput
from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import MIB
from decisions.bundles.usage import max_usage, weighted_max_within_limit

MARGIN, LOWER_BOUNDARY_SHARE = 0.05, 0.5


def shed_overloaded(cluster: ClusterView) -> dict[str, list[str]]:
    """OverloadShedder: brokers over a fixed threshold give until five points below it. Default until 2.9.

    Return the bundles to unload, by broker.
    """
    threshold = cluster.configuration.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    picked = dict[str, list[str]]()
    for broker, report in cluster.reports.items():
        usage = max_usage(report.data, cluster.configuration)
        hot = cluster.account.measured(BundleGate.OVERLOADED, usage, ">=", threshold, broker)
        if hot and _has_several(cluster, broker):
            bundles = _pick_until(cluster, broker, report.throughput * (usage - threshold + MARGIN))
            if bundles:
                picked[broker] = bundles
    return picked


def shed_above_average(cluster: ClusterView) -> dict[str, list[str]]:
    """ThresholdShedder: brokers with averaged usage far above the mean give. Default from 2.10 to 4.x.

    `lowerBoundarySheddingEnabled` lets the fullest broker give to an idle one. As upstream, that step runs the average
    a second time in the same cycle. Return the bundles to unload, by broker.
    """
    conf, memory = cluster.configuration, cluster.memory
    threshold = conf.number("loadBalancerBrokerThresholdShedderPercentage") / 100
    least = conf.number("loadBalancerBundleUnloadMinThroughputThreshold") * MIB
    average = _update(cluster)
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
        if _has_several(cluster, broker):
            bundles = _pick_until(cluster, broker, target)
            if bundles:
                picked[broker] = bundles
    if not picked and conf.on("lowerBoundarySheddingEnabled"):
        return _lower_boundary(cluster, threshold, least)
    return picked


def _lower_boundary(cluster: ClusterView, threshold: float, least: float) -> dict[str, list[str]]:
    average = _update(cluster)
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
    bundles = _pick_until(cluster, fullest, target)
    return {fullest: bundles} if bundles else {}


def _update(cluster: ClusterView) -> float:
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


def _has_several(cluster: ClusterView, broker: str) -> bool:
    """Tell if a broker has bundles to give and one to keep."""
    return cluster.account.measured(BundleGate.SOLE_BUNDLE, len(cluster.reports[broker].bundles), ">", 1, broker)


def _pick_until(cluster: ClusterView, broker: str, target: float) -> list[str]:
    """Bundles of a broker whose short-term throughput sums up to `target`, bytes per second."""
    loads = [(total_throughput(data.short_term_data), bundle) for bundle, data in cluster.candidates(broker)]
    picked, total = list[str](), 0.0
    for load, bundle in sorted(loads, key=lambda entry: (-entry[0], entry[1])):
        wanted = cluster.account.measured(BundleGate.STILL_NEEDED, total, "<", target, broker, bundle)
        if wanted or not picked:
            picked.append(bundle)
            total += load
    return picked
