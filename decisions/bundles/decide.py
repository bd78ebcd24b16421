"""Entry of the family: one cycle of a cluster's balancer, with the account of all that it saw. Pure.

Stage: over `shedding`, `splits` and `placement`; the caller of each minute is `engine.bundles.cycle`.
"""

from collections.abc import Mapping
from typing import Literal

from decisions.bundles.averages import add_bundle_sample
from decisions.bundles.candidates import unreadable_policies
from decisions.bundles.cluster import ClusterView, view_cluster
from decisions.bundles.configuration import GAIN, LEAST_PROJECTED
from decisions.bundles.gates import BundleGate
from decisions.bundles.memory import save_memory
from decisions.bundles.placement import select as placement
from decisions.bundles.placement.strategies import choose_among, select_least_projected
from decisions.bundles.shedders import gain, transfer
from decisions.bundles.shedding import find_alone, forget_old, shed_bundles
from decisions.bundles.splits import split_bundles
from decisions.bundles.usage import max_usage, weighted_max
from schemas.bundles import BundleAnswer, BundleDecision, BundleSnapshot

Action = Literal["hold", "unload", "assign", "split", "average"]


def decide(snapshot: BundleSnapshot) -> BundleAnswer:
    """Decide what the balancer would do. Raises `ConfigurationError` for unreadable settings or policies."""
    cluster = view_cluster(snapshot)
    if snapshot.operation == "average":
        return _answer_average(cluster)
    if snapshot.operation in ("shed", "assign"):
        for name, why in unreadable_policies(cluster).items():
            cluster.account.held(BundleGate.SETTINGS, detail=f"isolation policy {name}: {why}; its bundles stay")
    if snapshot.operation == "assign":
        strategy, decisions = _assign_bundles(cluster)
        return _make_answer(cluster, strategy, decisions, "assign")
    if snapshot.operation == "selectBroker":
        return _select_alone(cluster)
    if snapshot.operation == "split":
        name = "DefaultNamespaceBundleSplitStrategyImpl" if cluster.configuration.extensible else "BundleSplitterTask"
        return _make_answer(cluster, name, split_bundles(cluster), "split")
    if cluster.configuration.text("loadBalancerLoadSheddingStrategy") == GAIN:
        return _answer_gain(cluster)
    return _answer_transfer(cluster) if cluster.configuration.extensible else _answer_shed(cluster)


def _answer_shed(cluster: ClusterView) -> BundleAnswer:
    name = cluster.configuration.text("loadBalancerLoadSheddingStrategy")
    if name == "TransferShedder":
        return _answer_transfer(cluster)
    if cluster.snapshot.operation == "findBundlesForUnloading":
        picked, decisions = find_alone(cluster)
    else:
        picked, decisions = shed_bundles(cluster)
    return _make_answer(cluster, name, decisions, "unload", selected=picked)


def _answer_transfer(cluster: ClusterView) -> BundleAnswer:
    if cluster.snapshot.operation != "findBundlesForUnloading":
        if not _is_on(cluster):
            return _make_answer(cluster, "TransferShedder", [], "unload")
        forget_old(cluster)
    result = transfer.shed_transfers(cluster)
    picked = dict[str, list[str]]()
    for decision in result.decisions:
        picked.setdefault(decision.source_broker or "", []).append(decision.bundle)
    statistics = {"avg": result.average, "std": result.deviation}
    answer = _make_answer(cluster, "TransferShedder", result.decisions, "unload", selected=picked)
    return answer.model_copy(update={"label": result.label, "reason": result.reason, "statistics": statistics})


def _answer_gain(cluster: ClusterView) -> BundleAnswer:
    decisions = list[BundleDecision]()
    alone = cluster.snapshot.operation == "findBundlesForUnloading"
    if alone or _is_on(cluster):
        forget_old(cluster)
        decisions = gain.shed_for_gain(cluster)
    picked = dict[str, list[str]]()
    for decision in decisions:
        picked.setdefault(decision.source_broker or "", []).append(decision.bundle)
    return _make_answer(cluster, GAIN, decisions, "unload", selected=picked)


def _is_on(cluster: ClusterView) -> bool:
    conf, account = cluster.configuration, cluster.account
    on = conf.on("loadBalancerEnabled") and conf.on("loadBalancerSheddingEnabled")
    return account.passes(BundleGate.ENABLED, on) and account.passes(BundleGate.LEADER, cluster.snapshot.leader)


def _assign_bundles(cluster: ClusterView) -> tuple[str, list[BundleDecision]]:
    conf = cluster.configuration
    name = conf.text("loadBalancerLoadPlacementStrategy")
    if conf.extensible and name != LEAST_PROJECTED:
        name = "LeastResourceUsageWithWeight"
    decisions = list[BundleDecision]()
    for bundle in cluster.snapshot.assign:
        broker = _assign_extensible(cluster, bundle) if conf.extensible else placement.assign_bundle(cluster, bundle)
        if broker is not None:
            decisions.append(BundleDecision(action="assign", bundle=bundle, destination_broker=broker, reason=name))
    return name, decisions


def _select_alone(cluster: ClusterView) -> BundleAnswer:
    name = cluster.configuration.text("loadBalancerLoadPlacementStrategy")
    allowed = cluster.snapshot.candidates
    brokers = [broker for broker in cluster.reports if allowed is None or broker in allowed]
    decisions = list[BundleDecision]()
    for bundle in cluster.snapshot.assign:
        broker = placement.STRATEGIES[name](cluster, bundle, brokers)
        if cluster.account.passes(BundleGate.DESTINATION, broker is not None, broker, bundle):
            decisions.append(BundleDecision(action="assign", bundle=bundle, destination_broker=broker, reason=name))
    return _make_answer(cluster, name, decisions, "assign")


def _assign_extensible(cluster: ClusterView, bundle: str) -> str | None:
    brokers = transfer.filter_brokers(cluster, bundle, assigning=True)
    loads = cluster.snapshot.broker_load_data
    if cluster.configuration.text("loadBalancerLoadPlacementStrategy") == LEAST_PROJECTED:
        chosen = select_least_projected(cluster, bundle, brokers)
    else:
        usages = {broker: transfer.usage_of(cluster, broker) for broker in brokers if broker in loads}
        chosen = choose_among(cluster, bundle, brokers, usages)
    cluster.account.passes(BundleGate.DESTINATION, chosen is not None, chosen, bundle)
    return chosen


def _answer_average(cluster: ClusterView) -> BundleAnswer:
    averages = cluster.snapshot.bundles or {}
    plan = {} if cluster.configuration.on("fix26246") else cluster.memory.plan
    for report in cluster.reports.values():
        for bundle, stats in sorted(report.data.last_stats.items()):
            cluster.memory.averages[bundle] = moved = add_bundle_sample(averages.get(bundle), stats)
            if bundle in plan and moved != averages.get(bundle):
                del plan[bundle]
            cluster.memory.preallocated.get(report.broker, {}).pop(bundle, None)
    return _make_answer(cluster, "TimeAverageMessageData", [], "average", always=True)


def _make_answer(
    cluster: ClusterView,
    strategy: str,
    decisions: list[BundleDecision],
    action: Action,
    *,
    always: bool = False,
    selected: Mapping[str, list[str]] | None = None,
) -> BundleAnswer:
    acts = always or bool(decisions)
    return BundleAnswer.model_construct(
        operation=cluster.snapshot.operation,
        action=action if acts else "hold",
        strategy=strategy,
        profile=cluster.snapshot.profile,
        gate=None if acts else cluster.account.last_failing(),
        label=None,
        reason=None,
        selected=dict(selected or {}),
        decisions=decisions,
        readings=cluster.account.readings(),
        ties=cluster.account.ties,
        statistics={},
        usage=_usage_by_broker(cluster),
        ignored_configuration=sorted(cluster.configuration.ignored),
        state=save_memory(cluster.memory),
    )


def _usage_by_broker(cluster: ClusterView) -> dict[str, dict[str, float]]:
    conf = cluster.configuration
    by_broker = {
        broker: {
            "maxUsage": max_usage(report.data, conf),
            "maxUsageWithWeight": cluster.weighted(broker),
            "msgRate": report.rate,
            "msgThroughput": report.throughput,
        }
        for broker, report in cluster.reports.items()
    }
    for broker, data in sorted(cluster.snapshot.broker_load_data.items()):
        by_broker[broker] = {
            "maxUsage": max_usage(data, conf),
            "maxUsageWithWeight": weighted_max(data, conf),
            "weightedMaxEMA": transfer.usage_of(cluster, broker),
        }
    for name, usages in (
        ("thresholdShedderEMA", cluster.memory.threshold_usage),
        ("placementEMA", cluster.memory.placement_usage),
    ):
        for broker, usage in usages.items():
            by_broker.setdefault(broker, {})[name] = usage
    return by_broker
