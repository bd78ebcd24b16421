"""Broker for a bundle: filters in the order of the modular load manager, then the strategy by name.

Source: `ModularLoadManagerImpl.selectBroker`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from decisions.bundles import candidates
from decisions.bundles.averages import DEFAULT_BUNDLE
from decisions.bundles.cluster import SYSTEM_NAMESPACE, ClusterView
from decisions.bundles.configuration import LEAST_PROJECTED
from decisions.bundles.gates import BundleGate
from decisions.bundles.placement import strategies

Strategy = Callable[[ClusterView, str, list[str]], "str | None"]
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "LeastLongTermMessageRate": strategies.select_least_long_term,
        "LeastResourceUsageWithWeight": strategies.select_least_resource,
        "AvgShedder": strategies.select_planned,
        "RoundRobinBrokerSelector": strategies.select_round_robin,
        LEAST_PROJECTED: strategies.select_least_projected,
    }
)


def select_broker(cluster: ClusterView, bundle: str) -> str | None:
    """The broker for a bundle, or None when there is none."""
    conf = cluster.configuration
    if (forced := cluster.snapshot.affinity.get(bundle)) is not None:
        return forced
    allowed = candidates.isolated_brokers(cluster, bundle, cluster.reports)
    if not cluster.account.passes(
        BundleGate.DESTINATION, bool(allowed), bundle=bundle, detail="brokers that policies leave"
    ):
        return None
    namespace = candidates.namespace_of(bundle)
    brokers = candidates.under_topic_cap(cluster, bundle, allowed)
    brokers = candidates.spread_over_domains(cluster, bundle, brokers)
    if conf.on("loadBalancerDistributeBundlesEvenlyEnabled") or namespace == SYSTEM_NAMESPACE:
        brokers = candidates.fewest_bundles(cluster, bundle, brokers)
    classes = {broker: cluster.reports[broker].data.load_manager_class_name for broker in brokers}
    brokers = candidates.same_class(cluster, bundle, classes)
    versions = {broker: cluster.reports[broker].data.broker_version_string for broker in brokers}
    brokers = candidates.latest_version(cluster, bundle, versions) or allowed
    strategy = STRATEGIES[conf.text("loadBalancerLoadPlacementStrategy")]
    if namespace in conf.names("loadBalancerSheddingExcludedNamespaces"):
        strategy = strategies.select_round_robin
    chosen = strategy(cluster, bundle, brokers)
    threshold = conf.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    if chosen is None or cluster.fullest(chosen) <= threshold:
        return chosen
    if strategy is strategies.select_planned and conf.on("fix26246"):
        healthy = [broker for broker in allowed if cluster.fullest(broker) <= threshold]
        return strategy(cluster, bundle, healthy) or chosen
    return strategy(cluster, bundle, allowed)


def assign_bundle(cluster: ClusterView, bundle: str) -> str | None:
    """Place a bundle that nobody owns where it was preallocated, or on a new broker, and remember that."""
    if (preallocated := cluster.preallocated_to(bundle)) is not None:
        return preallocated
    if (chosen := select_broker(cluster, bundle)) is not None:
        cluster.give(chosen, bundle, cluster.bundles.get(bundle, DEFAULT_BUNDLE))
    return chosen
