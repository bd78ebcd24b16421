"""LeastLongTermMessageRate: the broker with the lowest long-term message rate. Default up to 4.x."""

from __future__ import annotations

from math import inf

from decisions.bundles.cluster import ClusterView


def select_least_long_term(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """The broker, or None without candidates. An overloaded one counts as infinitely busy."""
    scores = {broker: _score_broker(cluster, broker) for broker in brokers}
    if not scores:
        return None
    least = min(scores.values())
    return cluster.account.choice(bundle, [broker for broker, score in scores.items() if score == least])


def _score_broker(cluster: ClusterView, broker: str) -> float:
    conf = cluster.configuration
    threshold = conf.number("loadBalancerBrokerOverloadedThresholdPercentage") / 100
    if cluster.fullest(broker) > threshold:
        return inf
    long_term = cluster.long_term(broker)
    own = long_term.long_term_msg_rate_in + long_term.long_term_msg_rate_out
    return cluster.given(broker)[0] + own
