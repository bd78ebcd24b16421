"""LeastProjectedUsage, of profile `default`: the broker with the lowest usage once it has the bundle.

Usage is as it will be with all that was given and that reports do not show yet. A bundle of which nothing is known
counts as much as bundles do on average, so that one broker is not given all of them.
"""

from __future__ import annotations

from decisions.bundles.cluster import ClusterView
from decisions.bundles.projection import load_of, mean_load, move_bundle, project_loads


def select_least_projected(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """The broker, or None without candidates; remembered until it reports the bundle."""
    projected = project_loads(cluster)
    candidates = [projected[name] for name in brokers if name in projected]
    if not candidates:
        return cluster.account.choice(bundle, brokers) if brokers else None
    data = cluster.bundles.get(bundle)
    load = load_of(data.short_term_data) if data else mean_load(projected.values())
    usages = {broker.name: broker.with_load(load) for broker in candidates}
    least = min(usages.values())
    chosen = cluster.account.choice(bundle, [name for name, usage in usages.items() if usage == least])
    move_bundle(cluster, bundle, None, chosen, load)
    return chosen
