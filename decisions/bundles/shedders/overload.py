"""OverloadShedder: brokers over a fixed threshold give until five points below it. Default until 2.9."""

from __future__ import annotations

from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.shedders.greedy import has_several, pick_until
from decisions.bundles.usage import max_usage

MARGIN = 0.05


def shed_overload(cluster: ClusterView) -> dict[str, list[str]]:
    """The bundles to unload, by broker."""
    threshold = cluster.configuration.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    picked = dict[str, list[str]]()
    for broker, report in cluster.reports.items():
        usage = max_usage(report.data, cluster.configuration)
        hot = cluster.account.measured(BundleGate.OVERLOADED, usage, ">=", threshold, broker)
        if hot and has_several(cluster, broker):
            bundles = pick_until(cluster, broker, report.throughput * (usage - threshold + MARGIN))
            if bundles:
                picked[broker] = bundles
    return picked
