"""LeastResourceUsageWithWeight: any broker whose averaged usage is well below the candidates' mean.

With the modular manager the averages move at every call, for the candidates of that call only.
"""

from __future__ import annotations

from decisions.bundles.cluster import ClusterView


def select_least_resource(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """The broker, or None without candidates."""
    usages = cluster.memory.placement_usage
    for broker in set(usages) - set(cluster.reports):
        del usages[broker]
    for broker in brokers:
        usages[broker] = _moved_load(cluster, broker)
    return choose_among(cluster, bundle, brokers, {broker: usages[broker] for broker in brokers})


def choose_among(cluster: ClusterView, bundle: str, brokers: list[str], usages: dict[str, float]) -> str | None:
    """One of those with a usage far enough below the mean; of all candidates when none is."""
    if not brokers:
        return None
    apart = cluster.configuration.number("loadBalancerAverageResourceUsageDifferenceThresholdPercentage") / 100
    mean = sum(usages.values()) / len(usages) if usages else 0.0
    best = [broker for broker, usage in usages.items() if usage + apart <= mean]
    return cluster.account.choice(bundle, best or brokers)


def _moved_load(cluster: ClusterView, broker: str) -> float:
    report, conf = cluster.reports[broker], cluster.configuration
    now = cluster.weighted(broker)
    before = cluster.memory.placement_usage.get(broker)
    if before is None or not report.bundles or (report.msg_rate_in == 0 and report.msg_rate_out == 0):
        return now
    history = conf.number("loadBalancerHistoryResourcePercentage")
    return history * before + (1 - history) * now
