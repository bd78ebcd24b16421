"""RoundRobinBrokerSelector: the next of a remembered list."""

from __future__ import annotations

from decisions.bundles.cluster import ClusterView
from decisions.bundles.numbers import INT_MAX


def select_round_robin(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """Return the broker, or None without candidates.

    The list is replaced when its size or the pick is no longer right.
    """
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
