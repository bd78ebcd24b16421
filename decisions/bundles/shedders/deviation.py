"""DeviationShedder: the fullest broker gives while it is many standard deviations above the mean.

Upstream ships the abstract class only, so the load of each bundle comes with the snapshot (`deviationLoads`). One
deviation from upstream, on purpose: the receiver's load grows by what it is given, where upstream subtracts it.
"""

from math import sqrt

from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate


def shed_deviation(cluster: ClusterView) -> dict[str, list[str]]:
    """The bundles to unload, by broker; where each goes is in the plan."""
    bundle_loads = cluster.snapshot.deviation_loads
    if not (loads := {broker: sum(bundle_loads.get(broker, {}).values()) for broker in cluster.reports}):
        return {}
    mean = sum(loads.values()) / len(loads)
    deviation = sqrt(sum((load - mean) ** 2 for load in loads.values()) / len(loads))
    givers, moved, picked = set(loads), set[str](), dict[str, list[str]]()
    while givers:
        highest = max(sorted(givers), key=lambda broker: loads[broker])
        score = (loads[highest] - mean) / deviation if deviation > 0 else 0.0
        limit = cluster.snapshot.deviation_threshold
        if not cluster.account.measured(BundleGate.DEVIATION, score, ">", limit, highest):
            break
        bundle = _largest_that_helps(cluster, bundle_loads.get(highest, {}), loads, highest, moved)
        if bundle is None:
            givers.discard(highest)
            continue
        lowest = min(sorted(loads), key=lambda broker: loads[broker])
        loads[highest] -= bundle_loads[highest][bundle]
        loads[lowest] += bundle_loads[highest][bundle]
        moved.add(bundle)
        picked.setdefault(highest, []).append(bundle)
        cluster.memory.plan[bundle] = lowest
    return picked


def _largest_that_helps(
    cluster: ClusterView, bundles: dict[str, float], loads: dict[str, float], source: str, moved: set[str]
) -> str | None:
    least = min(loads.values())
    for bundle in sorted(bundles, key=lambda name: (-bundles[name], name)):
        if bundle in moved:
            continue
        if bundle in cluster.memory.unloaded_bundles:
            cluster.account.held(BundleGate.RECENTLY_UNLOADED, source, bundle)
        elif bundles[bundle] > 0 and cluster.account.measured(
            BundleGate.FITS, bundles[bundle] + least, "<", loads[source], source, bundle
        ):
            return bundle
    return None
