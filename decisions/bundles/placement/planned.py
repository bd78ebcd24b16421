"""AvgShedder as placement: where its plan says, otherwise any candidate.

Before apache/pulsar#26246 that candidate is remembered. Upstream takes the CRC-32 of a random number; the random number
here is the seed.
"""

from __future__ import annotations

from decisions.bundles.cluster import ClusterView


def select_planned(cluster: ClusterView, bundle: str, brokers: list[str]) -> str | None:
    """The broker, or None without candidates."""
    planned = cluster.planned(bundle)
    if planned in brokers:
        return planned
    if not brokers:
        return None
    chosen = cluster.account.choice(bundle, brokers)
    if not cluster.configuration.on("fix26246"):
        cluster.plan(bundle, chosen)
    return chosen
