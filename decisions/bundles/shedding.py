"""Shedding cycle of the modular manager: the shedder's picks, then policies and placement for each.

Source: `ModularLoadManagerImpl.doLoadShedding`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from decisions.bundles import candidates
from decisions.bundles.cluster import ClusterView
from decisions.bundles.configuration import OLD_UNIFORM
from decisions.bundles.gates import BundleGate
from decisions.bundles.placement.select import select_broker
from decisions.bundles.shedders import avg, deviation, threshold, uniform
from schemas.bundles import BundleDecision

Shedder = Callable[[ClusterView], dict[str, list[str]]]
SHEDDERS: Mapping[str, Shedder] = MappingProxyType(
    {
        "OverloadShedder": threshold.shed_overloaded,
        "ThresholdShedder": threshold.shed_above_average,
        "UniformLoadShedder": uniform.shed_uniform,
        OLD_UNIFORM: uniform.shed_21016,
        "AvgShedder": avg.shed_average,
        "DeviationShedder": deviation.shed_deviation,
    }
)


def forget_old(cluster: ClusterView) -> None:
    """Drops recently unloaded bundles whose grace period is over."""
    grace = cluster.configuration.number("loadBalancerSheddingGracePeriodMinutes") * 60_000
    unloaded = cluster.memory.unloaded_bundles
    for bundle in [bundle for bundle, unloaded_at in unloaded.items() if unloaded_at < cluster.now - grace]:
        del unloaded[bundle]


def shed_bundles(cluster: ClusterView) -> tuple[dict[str, list[str]], list[BundleDecision]]:
    """Return the shedder's picks by broker, and the unloads that are left of them."""
    conf, account = cluster.configuration, cluster.account
    on = conf.on("loadBalancerEnabled") and conf.on("loadBalancerSheddingEnabled")
    if not account.passes(BundleGate.ENABLED, on) or not account.passes(BundleGate.LEADER, cluster.snapshot.leader):
        return {}, []
    if not account.measured(BundleGate.BROKERS, len(cluster.reports), ">", 1):
        return {}, []
    forget_old(cluster)
    name = conf.text("loadBalancerLoadSheddingStrategy")
    picked = SHEDDERS[name](cluster)
    decisions = list[BundleDecision]()
    for broker, bundles in picked.items():
        for bundle in bundles:
            if (destination := _find_destination(cluster, broker, bundle)) is None:
                continue
            cluster.memory.unloaded_bundles[bundle] = cluster.now
            decisions.append(
                BundleDecision(
                    action="unload", bundle=bundle, source_broker=broker, destination_broker=destination, reason=name
                )
            )
    if name == "DeviationShedder" or (name == "AvgShedder" and conf.on("fix26246")):
        cluster.memory.plan.clear()
    return picked, decisions


def find_alone(cluster: ClusterView) -> tuple[dict[str, list[str]], list[BundleDecision]]:
    """The shedder's picks without the load manager around it; only a plan knows where they go."""
    name = cluster.configuration.text("loadBalancerLoadSheddingStrategy")
    picked = SHEDDERS[name](cluster)
    return picked, [
        BundleDecision(
            action="unload",
            bundle=bundle,
            source_broker=broker,
            destination_broker=cluster.planned(bundle),
            reason=name,
        )
        for broker, bundles in picked.items()
        for bundle in bundles
    ]


def _find_destination(cluster: ClusterView, broker: str, bundle: str) -> str | None:
    """Return the destination of a picked bundle, or None, with the gate that kept it."""
    account, namespace = cluster.account, candidates.namespace_of(bundle)
    if namespace in cluster.configuration.names("loadBalancerSheddingExcludedNamespaces"):
        account.held(BundleGate.EXCLUDED, broker, bundle)
        return None
    if candidates.stays_isolated(cluster, bundle, broker):
        return None
    if candidates.policy_of(cluster, namespace) is not None:
        allowed = set(candidates.isolated_brokers(cluster, bundle, cluster.reports)) - {broker}
        if not account.passes(BundleGate.ISOLATION, bool(allowed), broker, bundle):
            return None
    live = candidates.isolated_brokers(cluster, bundle, cluster.reports)
    spreads = candidates.unload_spreads(cluster, bundle, broker, live)
    if namespace in cluster.snapshot.anti_affinity_groups and not account.passes(
        BundleGate.ANTI_AFFINITY, spreads, broker, bundle
    ):
        return None
    if cluster.configuration.text("loadBalancerLoadSheddingStrategy") == "DeviationShedder":
        return cluster.memory.plan.get(bundle)
    destination = select_broker(cluster, bundle)
    if not account.passes(BundleGate.DESTINATION, destination is not None, broker, bundle, destination):
        return None
    if not cluster.configuration.on("fix20822"):
        return destination
    return destination if account.passes(BundleGate.MOVES, destination != broker, broker, bundle, destination) else None
