"""Bundles to split, by the modular manager's `BundleSplitterTask` and the extensible one's strategy.

The modular leader looks at every broker's last report and at long-term averages; an extensible broker at its own
bundles of this moment, after enough cycles in a row. Profile `default` waits for as many with either manager.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from decisions.bundles.averages import message_rate, total_throughput
from decisions.bundles.boundaries import bundle_range, split_boundaries
from decisions.bundles.candidates import namespace_of
from decisions.bundles.cluster import ClusterView
from decisions.bundles.configuration import GAIN
from decisions.bundles.gates import BundleGate
from decisions.bundles.numbers import MIB
from decisions.bundles.projection import project_loads
from schemas.bundles import BundleDecision, NamespaceBundleStats, TimeAverageMessageData, TopicLoad

_NO_LOAD = TimeAverageMessageData()


def split_bundles(cluster: ClusterView) -> list[BundleDecision]:
    """The splits of one cycle, each with its boundaries where they can be known."""
    conf, account = cluster.configuration, cluster.account
    if cluster.snapshot.split:
        return _asked_for(cluster)
    on = conf.on("loadBalancerEnabled") and conf.on("loadBalancerAutoBundleSplitEnabled")
    if not account.passes(BundleGate.ENABLED, on):
        return []
    if not conf.extensible and not (
        account.passes(BundleGate.LEADER, cluster.snapshot.leader)
        and account.measured(BundleGate.BROKERS, len(cluster.reports), ">", 1)
    ):
        return []
    two_topics = conf.extensible or conf.on("fix12527")
    accepted_count = conf.extensible or conf.on("fix16552")
    accepted, decisions = dict[str, int](), list[BundleDecision]()
    seen, counts, hot, by_broker = set[str](), _bundle_counter(cluster), _hot_bundles(cluster), Counter[str]()
    limits = _split_limits(cluster)
    for broker, bundle, stats in _bundle_stats(cluster):
        seen.add(bundle)
        if two_topics and not account.measured(BundleGate.TWO_TOPICS, stats.topics, ">=", 2, broker, bundle):
            continue
        reason = _split_reason(cluster, broker, bundle, stats, limits) or ("Usage" if bundle in hot else None)
        if not _often_enough(cluster, broker, bundle, reason is not None) or reason is None:
            continue
        namespace = namespace_of(bundle)
        count = counts(namespace) + (accepted.get(namespace, 0) if accepted_count else 0)
        most = conf.number("loadBalancerNamespaceMaximumBundles")
        if not account.measured(BundleGate.MAX_BUNDLES, count, "<", most, broker, bundle):
            continue
        per_cycle = conf.number("loadBalancerMaxNumberOfBundlesToSplitPerCycle")
        if conf.extensible and not account.measured(
            BundleGate.SPLITS_PER_CYCLE, by_broker[broker], "<", per_cycle, broker, bundle
        ):
            continue
        is_split, cuts = _find_cuts(cluster, broker, bundle)
        if is_split:
            accepted[namespace] = accepted.get(namespace, 0) + 1
            by_broker[broker] += 1
            cluster.memory.split_hits.pop(bundle, None)
            decisions.append(
                BundleDecision(action="split", bundle=bundle, source_broker=broker, reason=reason, boundaries=cuts)
            )
    for removed in set(cluster.memory.split_hits) - seen:
        del cluster.memory.split_hits[removed]
    return decisions


def _asked_for(cluster: ClusterView) -> list[BundleDecision]:
    decisions = list[BundleDecision]()
    for bundle in dict.fromkeys(cluster.snapshot.split):
        is_split, cuts = _find_cuts(cluster, None, bundle)
        if is_split:
            decisions.append(BundleDecision(action="split", bundle=bundle, reason="Admin", boundaries=cuts))
    return decisions


def _bundle_stats(cluster: ClusterView) -> Iterator[tuple[str, str, NamespaceBundleStats]]:
    for broker, report in cluster.reports.items():
        for bundle, stats in sorted(report.data.last_stats.items()):
            yield broker, bundle, stats
    for broker, top in sorted(cluster.snapshot.top_bundles.items()):
        if cluster.configuration.extensible and broker not in cluster.reports:
            for entry in top.top_bundles_load_data:
                yield broker, entry.bundle_name, entry.stats


_Measure: TypeAlias = Callable[[NamespaceBundleStats, TopicLoad], float]
"""What a limit is compared with: of a bundle's statistics, or of the load that the manager judges by."""


def _split_limits(cluster: ClusterView) -> list[tuple[str, float, _Measure]]:
    """Return the limits of a bundle in upstream's order."""
    limit = cluster.configuration.number
    limits: list[tuple[str, float, _Measure]] = [
        ("Topics", limit("loadBalancerNamespaceBundleMaxTopics"), lambda stats, _: stats.topics),
        (
            "Sessions",
            limit("loadBalancerNamespaceBundleMaxSessions"),
            lambda stats, _: float(stats.consumer_count + stats.producer_count),
        ),
        ("MsgRate", limit("loadBalancerNamespaceBundleMaxMsgRate"), lambda _, load: message_rate(load)),
        (
            "Bandwidth",
            limit("loadBalancerNamespaceBundleMaxBandwidthMbytes") * MIB,
            lambda _, load: total_throughput(load),
        ),
    ]
    return [entry for entry in limits if entry[0] != "Sessions" or entry[1] > 0]


def _split_reason(
    cluster: ClusterView,
    broker: str,
    bundle: str,
    stats: NamespaceBundleStats,
    limits: list[tuple[str, float, _Measure]],
) -> str | None:
    """The first limit that a bundle is over."""
    load: TopicLoad = stats
    if not cluster.configuration.extensible:
        data = cluster.bundles.get(bundle)
        load = data.long_term_data if data else _NO_LOAD
    for name, limit, measure in limits:
        if cluster.account.measured(BundleGate.SPLIT_NEEDED, measure(stats, load), ">", limit, broker, bundle, name):
            return name
    return None


def _hot_bundles(cluster: ClusterView) -> set[str]:
    """Return bundles above a broker's mean usage, which no move evens out (profile `default`)."""
    conf, hot = cluster.configuration, set[str]()
    if conf.text("loadBalancerLoadSheddingStrategy") != GAIN or not (brokers := project_loads(cluster).values()):
        return hot
    mean, emptiest = sum(broker.usage for broker in brokers) / len(brokers), min(broker.usage for broker in brokers)
    least = conf.number("gainShedderSpreadPercentage") / 100
    for broker in brokers:
        if broker.usage - emptiest < least:
            continue
        for bundle, load in broker.bundles.items():
            share = broker.usage - broker.with_load(load, -1)
            if share > mean and cluster.account.measured(
                BundleGate.SPLIT_NEEDED, share, ">", mean, broker.name, bundle, "Usage"
            ):
                hot.add(bundle)
    return hot


def _often_enough(cluster: ClusterView, broker: str, bundle: str, needed: bool) -> bool:
    conf = cluster.configuration
    if not conf.extensible and conf.text("loadBalancerLoadSheddingStrategy") != GAIN:
        return needed
    hits = cluster.memory.split_hits
    if not needed:
        hits.pop(bundle, None)
        return False
    hits[bundle] = min(2**31 - 1, hits.get(bundle, 0) + 1)
    least = cluster.configuration.number("loadBalancerNamespaceBundleSplitConditionHitCountThreshold")
    return cluster.account.measured(BundleGate.HIT_COUNT, hits[bundle], ">", least, broker, bundle)


def _bundle_counter(cluster: ClusterView) -> Callable[[str], int]:
    """Return a function that counts a namespace's bundles, as given or else as reported, once for all."""
    counts = cluster.snapshot.namespace_bundles
    reported = Counter[str]()

    def count(namespace: str) -> int:
        if namespace in counts:
            return counts[namespace]
        if not reported:
            reported.update(map(namespace_of, {bundle for _, bundle, _ in _bundle_stats(cluster)}))
        return reported[namespace]

    return count


def _find_cuts(cluster: ClusterView, broker: str | None, bundle: str) -> tuple[bool, list[str] | None]:
    """Find out if the bundle can be split, and where, when the snapshot has what the algorithm needs.

    None: where the broker's own algorithm says. `broker` is None for a split that a person asks for.
    """
    conf, snapshot = cluster.configuration, cluster.snapshot
    try:
        lower, upper = bundle_range(bundle)
    except ValueError as error:
        cluster.account.held(BundleGate.SPLITTABLE, broker, bundle, str(error))
        return False, None
    if not cluster.account.measured(BundleGate.SPLITTABLE, upper - lower, ">", 1, broker, bundle, "width in hashes"):
        return False, None
    algorithm = snapshot.split_algorithm or conf.text("defaultNamespaceBundleSplitAlgorithm")
    topics = snapshot.topics.get(bundle)
    if topics is None and algorithm in ("topic_count_equally_divide", "flow_or_qps_equally_divide"):
        if broker is None:
            return True, None
        # Without positions nobody could say what the split was to be; by load, brokers answer 500 to it (4.0.7).
        missing = f"{algorithm} needs the bundle's topics, none are known"
        cluster.account.held(BundleGate.SPLITTABLE, broker, bundle, missing)
        return False, None
    try:
        positions = split_boundaries(bundle, algorithm, topics, snapshot.split_positions.get(bundle, ()), conf)
    except ValueError as error:
        cluster.account.held(BundleGate.SPLITTABLE, broker, bundle, str(error))
        return False, None
    if positions is None or (conf.extensible and len(positions) != 1):
        several = "the extensible manager splits in two only" if positions else f"{algorithm} found no boundary"
        cluster.account.held(BundleGate.SPLITTABLE, broker, bundle, several)
        return False, None
    return True, [f"0x{position:08x}" for position in positions]
