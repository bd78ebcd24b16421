"""Busiest bundles of brokers, as the extensible load manager's brokers choose them for their load data.

Stage: before `decide`, for reports with more bundles than a broker publishes. Source: `TopKBundles`.
"""

from collections.abc import Mapping
from typing import Any

from decisions.bundles.cluster import SYSTEM_NAMESPACE, never_moved
from decisions.bundles.configuration import GAIN, Configuration, ConfigurationError
from decisions.bundles.patterns import matching_texts
from schemas.base import build_model
from schemas.bundles import IsolationPolicy, TopBundlesLoadData

LIMIT = "loadBalancerMaxNumberOfBundlesInBundleLoadReport"
_DEFAULT_LIMIT = 10


def choose_top_bundles(
    reported: Mapping[str, TopBundlesLoadData],
    settings: Mapping[str, Any],
    profile: str,
    isolation_policies: Mapping[str, IsolationPolicy],
    anti_affinity_groups: Mapping[str, str],
) -> dict[str, TopBundlesLoadData]:
    """Return the busiest bundles of each broker that may be shed; `reported` has the busiest last.

    Pulsar's own and excluded namespaces are left out, and those with an isolation policy or an anti-affinity group
    unless the settings shed them too. GainShedder has rules of its own and gets all. The limit counts what remains, so
    a bundle that stays takes no place of one that may go. Raises `ConfigurationError`.
    """
    configuration, most = Configuration(settings, profile, alone=True), _limit(settings)
    if configuration.text("loadBalancerLoadSheddingStrategy") == GAIN:
        return dict(reported)
    names = {_namespace(entry.bundle_name) for top in reported.values() for entry in top.top_bundles_load_data}
    staying = {SYSTEM_NAMESPACE, *configuration.names("loadBalancerSheddingExcludedNamespaces")}
    staying.update(name for name in names if never_moved(f"{name}/"))
    if not configuration.on("loadBalancerSheddingBundlesWithPoliciesEnabled"):
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
