"""Busiest bundles of brokers, as the extensible load manager's brokers choose them for their load data.

Stage: before `decide`, for reports with more bundles than a broker publishes. Sources: `TopKBundles` and the order of
`NamespaceBundleStats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any

from decisions.bundles.averages import message_rate
from decisions.bundles.configuration import GAIN, Configuration, ConfigurationError
from decisions.bundles.patterns import matching_texts
from schemas.base import build_model
from schemas.bundles import IsolationPolicy, NamespaceBundleStats, TopBundle, TopBundlesLoadData

LIMIT = "loadBalancerMaxNumberOfBundlesInBundleLoadReport"
_DEFAULT_LIMIT = 10
_THROUGHPUT, _MESSAGES, _CONNECTIONS, _CACHE = 100_000, 100, 500, 100_000
"""Upstream compares bundles by multiples of these."""


def busiest_last(loads: Mapping[str, NamespaceBundleStats], most: int) -> TopBundlesLoadData:
    """Return the `most` busiest bundles, the busiest last.

    Upstream compares throughput in before throughput out, both in steps of 100 kB/s, then messages, connections and
    cache. Among equals it follows a hash map's order; here names decide.
    """
    ordered = sorted(loads, key=lambda bundle: (_load_rank(loads[bundle]), bundle))
    chosen = ordered[max(0, len(ordered) - most) :]
    top = [build_model(TopBundle, {"bundle_name": bundle, "stats": loads[bundle]}) for bundle in chosen]
    return build_model(TopBundlesLoadData, {"top_bundles_load_data": top})


def _load_rank(stats: NamespaceBundleStats) -> tuple[int, ...]:
    return (
        floor(stats.msg_throughput_in / _THROUGHPUT + 0.5),
        floor(stats.msg_throughput_out / _THROUGHPUT + 0.5),
        floor(message_rate(stats) / _MESSAGES + 0.5),
        (stats.topics + stats.consumer_count + stats.producer_count) // _CONNECTIONS,
        stats.cache_size // _CACHE,
    )


def choose_top_bundles(
    reported: Mapping[str, TopBundlesLoadData],
    settings: Mapping[str, Any],
    profile: str,
    isolation_policies: Mapping[str, IsolationPolicy],
    anti_affinity_groups: Mapping[str, str],
) -> dict[str, TopBundlesLoadData]:
    """Return the busiest bundles of each broker that may be shed; `reported` has the busiest last.

    Excluded namespaces are left out, and those with an isolation policy or an anti-affinity group unless the settings
    shed them too. GainShedder has rules of its own and gets all. The limit counts what remains, so a bundle that stays
    takes no place of one that may go. Raises `ConfigurationError`.
    """
    configuration, most = Configuration(settings, profile, alone=True), _limit(settings)
    if configuration.text("loadBalancerLoadSheddingStrategy") == GAIN:
        return dict(reported)
    staying = set(configuration.names("loadBalancerSheddingExcludedNamespaces"))
    if not configuration.on("loadBalancerSheddingBundlesWithPoliciesEnabled"):
        names = {_namespace(entry.bundle_name) for top in reported.values() for entry in top.top_bundles_load_data}
        namespaces = tuple(sorted(names))
        staying.update(anti_affinity_groups)
        for policy in isolation_policies.values():
            for pattern in policy.namespaces:
                staying.update(matching_texts(pattern, namespaces))
    chosen = dict[str, TopBundlesLoadData]()
    for broker, top in reported.items():
        movable = [entry for entry in top.top_bundles_load_data if _namespace(entry.bundle_name) not in staying]
        chosen[broker] = build_model(
            TopBundlesLoadData, {"top_bundles_load_data": movable[max(0, len(movable) - most) :]}
        )
    return chosen


def _namespace(bundle: str) -> str:
    return bundle.rpartition("/")[0]


def _limit(settings: Mapping[str, Any]) -> int:
    value = settings.get(LIMIT, _DEFAULT_LIMIT)
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        raise ConfigurationError(f"configuration.{LIMIT}: {str(value)[:80]!r} is no whole number") from None
