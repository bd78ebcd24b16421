"""Placement strategies: each returns the broker for a bundle among candidates, None without any.

Stage: under `select`, which filters the candidates first and names the strategies. One that remembers something
changes `memory` of the cluster in place; ties are broken by the seed, and noted, in its `account`.
"""

from math import inf

from decisions.bundles.cluster import ClusterView
from decisions.bundles.numbers import INT_MAX
from decisions.bundles.projection import load_of, mean_load, move_bundle, project_loads


def select_least_long_term(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """LeastLongTermMessageRate (default up to 4.x): lowest long-term rate; overloaded is infinite."""
    if not (scores := {broker: _score_broker(cluster, broker) for broker in brokers}):
        return None
    least = min(scores.values())
    return cluster.account.choice(bundle, [broker for broker, score in scores.items() if score == least])


def _score_broker(cluster: ClusterView, broker: str) -> float:
    threshold = cluster.configuration.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    if cluster.fullest(broker) > threshold:
        return inf
    long_term = cluster.long_term(broker)
    own = long_term.long_term_msg_rate_in + long_term.long_term_msg_rate_out
    return cluster.given(broker)[0] + own


def select_least_projected(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """LeastProjectedUsage, of profile `default`: the broker with the lowest usage once it has the bundle.

    Usage is as it will be with all that was given and that reports do not show yet. A bundle of which nothing is known
    counts as much as bundles do on average, so that one broker is not given all of them. The choice is remembered until
    the broker reports the bundle. Where no candidate has a known usage, any of them is chosen, and nothing remembered.
    """
    projected = project_loads(cluster)
    if not (candidates := [projected[name] for name in brokers if name in projected]):
        return cluster.account.choice(bundle, brokers) if brokers else None
    data = cluster.bundles.get(bundle)
    load = load_of(data.short_term_data) if data else mean_load(projected.values())
    usages = {broker.name: broker.with_load(load) for broker in candidates}
    least = min(usages.values())
    chosen = cluster.account.choice(bundle, [name for name, usage in usages.items() if usage == least])
    move_bundle(cluster, bundle, None, chosen, load)
    return chosen


def select_least_resource(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """LeastResourceUsageWithWeight: any broker well below the candidates' mean of averaged usage."""
    usages = cluster.memory.placement_usage
    for broker in set(usages) - set(cluster.reports):
        del usages[broker]
    for broker in brokers:
        usages[broker] = _moved_load(cluster, broker)
    return choose_among(cluster, bundle, brokers, {broker: usages[broker] for broker in brokers})


def choose_among(cluster: ClusterView, bundle: str, brokers: list[str], usages: dict[str, float]) -> str | None:
    """Choose a broker with a usage far enough below the mean; any candidate if there is none."""
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


def select_planned(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """AvgShedder as placement: where its plan says, otherwise any candidate.

    Before apache/pulsar#26246 that candidate is remembered. Upstream takes the CRC-32 of a random number; the random
    number here is the seed.
    """
    planned = cluster.planned(bundle)
    if planned in brokers:
        return planned
    if not brokers:
        return None
    chosen = cluster.account.choice(bundle, brokers)
    if not cluster.configuration.on("fix26246"):
        cluster.plan(bundle, chosen)
    return chosen


def select_round_robin(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """RoundRobinBrokerSelector: the next of a remembered list, replaced when it no longer fits."""
    memory = cluster.memory
    if not brokers:
        return None
    count = memory.round_robin_count
    memory.round_robin_count = 0 if count >= INT_MAX else count + 1
    if len(memory.round_robin) != len(brokers):
        memory.round_robin = sorted(brokers)
    chosen = memory.round_robin[count % len(memory.round_robin)]
    if chosen not in brokers:
        memory.round_robin = sorted(brokers)
        chosen = memory.round_robin[count % len(memory.round_robin)]
    return chosen
