"""Selection of one broker's bundles by throughput, for OverloadShedder and ThresholdShedder.

The largest first, until their sum reaches the target: it overshoots by up to one bundle, and picks at least one.
"""

from __future__ import annotations

from decisions.bundles.averages import total_throughput
from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate


def has_several(cluster: ClusterView, broker: str) -> bool:
    """Tell if a broker has bundles to give and one to keep."""
    return cluster.account.measured(BundleGate.SOLE_BUNDLE, len(cluster.reports[broker].bundles), ">", 1, broker)


def pick_until(cluster: ClusterView, broker: str, target: float) -> list[str]:
    """Bundles of a broker whose short-term throughput sums up to `target`, bytes per second."""
    loads = [(total_throughput(data.short_term_data), bundle) for bundle, data in cluster.candidates(broker)]
    picked, total = list[str](), 0.0
    for load, bundle in sorted(loads, key=lambda entry: (-entry[0], entry[1])):
        wanted = cluster.account.measured(BundleGate.STILL_NEEDED, total, "<", target, broker, bundle)
        if wanted or not picked:
            picked.append(bundle)
            total += load
    return picked
