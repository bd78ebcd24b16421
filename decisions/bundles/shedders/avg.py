"""AvgShedder: pairs the highest broker with the lowest after enough cycles (PIP-364). Default in 5.0.

Counters are a broker's, not a pair's: it may change partners and keeps counting. The plan says where each picked
bundle goes; placement by the same strategy follows it.
"""

from collections.abc import Mapping
from functools import cmp_to_key

from decisions.bundles.averages import message_rate, total_throughput
from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import INT_MAX, java_int


def shed_average(cluster: ClusterView) -> dict[str, list[str]]:
    """The bundles to unload, by broker; the counters and the plan move."""
    picked = dict[str, list[str]]()
    for low, high in _broker_pairs(cluster):
        if _is_triggered(cluster, low, high):
            for broker in (low, high):
                cluster.memory.hits_low.pop(broker, None)
                cluster.memory.hits_high.pop(broker, None)
            if bundles := _pick_bundles(cluster, low, high):
                picked.setdefault(high, []).extend(bundles)
    return picked


def _broker_pairs(cluster: ClusterView) -> list[tuple[str, str]]:
    conf, memory = cluster.configuration, cluster.memory
    near = conf.number("loadBalancerAvgShedderLowThreshold")
    far = conf.number("loadBalancerAvgShedderHighThreshold")
    scores = {broker: cluster.weighted(broker) * 100 for broker in cluster.reports}
    ordered = _order_brokers(scores, conf.on("fix24954"))
    pairs = list[tuple[str, str]]()
    for index in range((len(ordered) + 1) // 2):
        low, high = ordered[index], ordered[-1 - index]
        apart = scores[high] - scores[low]
        detail = None if low == high else f"against {low}"
        if not cluster.account.measured(BundleGate.PAIR_DIFFERENCE, apart, ">=", near, high, detail=detail):
            for broker in (low, high):
                memory.hits_low.pop(broker, None)
                memory.hits_high.pop(broker, None)
            continue
        pairs.append((low, high))
        for broker in (low, high):  # as upstream, a broker in the middle counts twice
            memory.hits_low[broker] = min(INT_MAX, memory.hits_low.get(broker, 0) + 1)
            if apart < far:
                memory.hits_high.pop(broker, None)
            else:
                memory.hits_high[broker] = min(INT_MAX, memory.hits_high.get(broker, 0) + 1)
    if not pairs:
        memory.hits_low.clear()
        memory.hits_high.clear()
    return pairs


def _order_brokers(scores: Mapping[str, float], exact: bool) -> list[str]:
    """Return the brokers by score, ascending; not `exact`: by whole points, as first released."""
    named = sorted(scores)
    if exact:
        return sorted(named, key=lambda broker: scores[broker])

    def apart(left: str, right: str) -> int:
        return java_int(scores[left] - scores[right])

    return sorted(named, key=cmp_to_key(apart))


def _is_triggered(cluster: ClusterView, low: str, high: str) -> bool:
    conf, memory = cluster.configuration, cluster.memory
    often = conf.whole("loadBalancerAvgShedderHitCountLowThreshold")
    soon = conf.whole("loadBalancerAvgShedderHitCountHighThreshold")
    for broker in (low, high):
        if (hits := memory.hits_high.get(broker, 0)) >= soon:
            return cluster.account.measured(BundleGate.HIT_COUNT, hits, ">=", soon, broker)
    most = max((low, high), key=lambda broker: memory.hits_low.get(broker, 0))
    return cluster.account.measured(BundleGate.HIT_COUNT, memory.hits_low.get(most, 0), ">=", often, most)


def _pick_bundles(cluster: ClusterView, low: str, high: str) -> list[str]:
    conf, account = cluster.configuration, cluster.account
    source, receiver = cluster.reports[high], cluster.reports[low]
    share = conf.number("maxUnloadPercentage")
    rate_need = (source.rate - receiver.rate) * share
    bytes_need = (source.throughput - receiver.throughput) * share
    least_rate, least_bytes = conf.number("minUnloadMessage"), conf.number("minUnloadMessageThroughput")
    if account.measured(BundleGate.MIN_MESSAGES, rate_need, ">", least_rate, high, detail="messages per second"):
        remaining, weigh = rate_need, message_rate
    elif account.measured(BundleGate.MIN_MESSAGES, bytes_need, ">", least_bytes, high, detail="bytes per second"):
        remaining, weigh = bytes_need, total_throughput
    else:
        return []
    loads = [(weigh(data.short_term_data), bundle) for bundle, data in cluster.candidates(high)]
    picked = list[str]()
    for load, bundle in sorted(loads, key=lambda entry: (-entry[0], entry[1])):
        if account.measured(BundleGate.HAS_TRAFFIC, load, ">", 0, high, bundle) and account.measured(
            BundleGate.FITS, load, "<=", remaining, high, bundle
        ):
            picked.append(bundle)
            remaining -= load
            cluster.plan(bundle, low)
    return picked
