"""Brokers that policies and filters let through.

Source: `LoadManagerShared`, `SimpleResourceAllocationPolicies`. Stage: before every placement, and before a bundle may
leave its broker.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from decisions.bundles.cluster import ClusterView
from decisions.bundles.gates import BundleGate
from decisions.bundles.patterns import inexact_reason, matching_texts
from schemas.bundles import IsolationPolicy

_VERSION = re.compile(
    r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z-]{1,40}(?:\.[0-9A-Za-z-]{1,40}){0,9}))?(?:\+[0-9A-Za-z.-]+)?"
)
_Version: TypeAlias = tuple[tuple[int, ...], tuple[int, tuple[tuple[int, int, str], ...]]]
_DEFAULT_DOMAIN = "default"
MAX_NAMED = 10
"""Brokers that a filter drops and that an account names, of a bundle; the others are counted."""


def namespace_of(bundle: str) -> str:
    """`tenant/namespace` of a bundle."""
    return bundle.rpartition("/")[0]


def _brokers_named(cluster: ClusterView, patterns: Sequence[str]) -> frozenset[str]:
    """Which brokers of the cluster some patterns name: by address with or without its scheme, or by host."""
    cache = cluster.cache.named
    if (key := tuple(patterns)) not in cache:
        snapshot = cluster.snapshot
        brokers = {*snapshot.brokers, *snapshot.broker_load_data, *(snapshot.available_brokers or ())}
        forms = {broker: _name_forms(broker) for broker in sorted(brokers)}
        texts = tuple(form for every in forms.values() for form in every)
        matched = frozenset().union(*(matching_texts(pattern, texts) for pattern in patterns))
        cache[key] = frozenset(broker for broker, every in forms.items() if not matched.isdisjoint(every))
    return cache[key]


def _name_forms(broker: str) -> tuple[str, str, str]:
    address = broker.partition("://")[2] or broker
    return broker, address, address.rpartition(":")[0] or address


def _may_be_of(cluster: ClusterView, policy: IsolationPolicy, namespace: str) -> bool:
    """Tell if a policy's patterns match a namespace; the cluster's are matched all at once."""
    cache = cluster.cache
    if cache.namespaces is None:
        names = {bundle for report in cluster.reports.values() for bundle in report.bundles}
        for top in cluster.snapshot.top_bundles.values():
            names.update(stats.bundle_name for stats in top.top_bundles_load_data)
        cache.namespaces = tuple(sorted(set(map(namespace_of, names))))
        cache.is_namespace = frozenset(cache.namespaces)
    texts = cache.namespaces if namespace in cache.is_namespace else (namespace,)
    return any(namespace in matching_texts(pattern, texts) for pattern in policy.namespaces)


def policy_of(cluster: ClusterView, namespace: str) -> IsolationPolicy | None:
    """The isolation policy that holds for a namespace."""
    cache = cluster.cache.policies
    if namespace not in cache:
        policies = cluster.snapshot.isolation_policies.values()
        cache[namespace] = next((policy for policy in policies if _may_be_of(cluster, policy, namespace)), None)
    return cache[namespace]


def unreadable_policies(cluster: ClusterView) -> dict[str, str]:
    """Map isolation policies that cannot be followed to the reason: a pattern or limit not understood."""
    cache = cluster.cache
    if cache.unreadable is None:
        cache.unreadable = {
            name: fault
            for name, policy in cluster.snapshot.isolation_policies.items()
            if (fault := _policy_fault(policy)) is not None
        }
    return cache.unreadable


def _policy_fault(policy: IsolationPolicy) -> str | None:
    for field in ("namespaces", "primary", "secondary"):
        for pattern in getattr(policy, field):
            if (why := inexact_reason(pattern)) is not None:
                return f"{field} {pattern[:80]!r} cannot be matched: {why}"
    min_limit = policy.auto_failover_policy.parameters.get("min_limit", 1)
    return None if _min_limit(policy) is not None else f"min_limit {str(min_limit)[:80]!r} is no whole number"


def unknown_policy(cluster: ClusterView, bundle: str) -> str | None:
    """Return an unreadable policy that may apply to the bundle, with the reason, or None."""
    unreadable, cache = unreadable_policies(cluster), cluster.cache.unknown
    if not unreadable:
        return None
    namespace = namespace_of(bundle)
    if namespace not in cache:
        policies = cluster.snapshot.isolation_policies
        cache[namespace] = next(
            (f"{name}: {why}" for name, why in unreadable.items() if _may_be_of(cluster, policies[name], namespace)),
            None,
        )
    return cache[namespace]


def stays_isolated(cluster: ClusterView, bundle: str, broker: str) -> bool:
    """Note a bundle that stays where it is because its isolation policy is not known."""
    why = unknown_policy(cluster, bundle)
    return why is not None and not cluster.account.passes(BundleGate.SETTINGS, False, broker, bundle, why)


def isolated_brokers(cluster: ClusterView, bundle: str, brokers: Iterable[str]) -> list[str]:
    """Return brokers that a bundle may be on by its policy, or nobody's primaries; none if it is unknown."""
    namespace, cache = namespace_of(bundle), cluster.cache.isolated
    if (why := unknown_policy(cluster, bundle)) is not None:
        cluster.account.held(BundleGate.SETTINGS, None, bundle, why)
        return []
    policy = policy_of(cluster, namespace)
    key = (None if policy is None else namespace, tuple(brokers))
    if key not in cache:
        cache[key] = _brokers_of_policy(cluster, policy, key[1])
    live, allowed = cache[key]
    if len(allowed) < len(live):
        _note_dropped(cluster, BundleGate.ISOLATION, bundle, live, allowed)
    return list(allowed)


def _brokers_of_policy(
    cluster: ClusterView, policy: IsolationPolicy | None, brokers: tuple[str, ...]
) -> tuple[Sequence[str], list[str]]:
    """The brokers that come into question, and those of them that a policy, or the lack of one, leaves.

    As upstream, abilities are asked about only without a policy. Every bundle counts as one of persistent topics:
    nothing in a snapshot tells of any that is not.
    """
    if policy is None:
        policies = cluster.snapshot.isolation_policies.values()
        reserved = frozenset().union(*(_brokers_named(cluster, isolation.primary) for isolation in policies))
        allowed = [broker for broker in brokers if broker not in reserved]
        return brokers, [broker for broker in allowed if _serves_persistent(cluster, broker)]
    primary, secondary = _brokers_named(cluster, policy.primary), _brokers_named(cluster, policy.secondary)
    allowed = [broker for broker in brokers if broker in primary]
    if len(allowed) < (_min_limit(policy) or 0):
        allowed += [broker for broker in brokers if broker in secondary - primary]
    return brokers, allowed


def _serves_persistent(cluster: ClusterView, broker: str) -> bool:
    """Tell if a broker has persistent topics, by its report or by the registry."""
    report = cluster.reports.get(broker)
    live = (cluster.snapshot.available_brokers or {}).get(broker)
    data = report.data if report else live
    return data is None or data.persistent_topics_enabled


def _min_limit(policy: IsolationPolicy) -> int | None:
    """Return the number of primary brokers below which secondaries count too; None if it is no number."""
    try:
        return int(policy.auto_failover_policy.parameters.get("min_limit", 1))
    except (ValueError, OverflowError):
        return None


def owned_namespaces(cluster: ClusterView, broker: str) -> dict[str, int]:
    """Count a broker's bundles by namespace, with those it was given and has not reported yet."""
    cache = cluster.cache.owned
    if broker not in cache:
        bundles = _owned_bundles(cluster, broker) | cluster.memory.preallocated.get(broker, {}).keys()
        cache[broker] = dict(Counter(map(namespace_of, bundles)))
    return cache[broker]


def _owned_bundles(cluster: ClusterView, broker: str) -> set[str]:
    """A broker's bundles as ownership says, or as it reports."""
    cache, ownership = cluster.cache, cluster.snapshot.ownership
    if ownership is None:
        report = cluster.reports.get(broker)
        return set(report.bundles) if report else set()
    if cache.owners is None:
        cache.owners = {}
        for bundle, owner in ownership.items():
            cache.owners.setdefault(owner, set()).add(bundle)
    return cache.owners.get(broker, set())


def _antiaffinity_group(cluster: ClusterView, bundle: str) -> set[str]:
    groups = cluster.snapshot.anti_affinity_groups
    own = groups.get(namespace_of(bundle))
    return set() if own is None else {name for name, group in groups.items() if group.lower() == own.lower()}


def has_policies(cluster: ClusterView, bundle: str) -> bool:
    """Tell if the bundle's namespace has an isolation policy or an anti-affinity group."""
    return namespace_of(bundle) in cluster.snapshot.anti_affinity_groups or (
        policy_of(cluster, namespace_of(bundle)) is not None
    )


def _group_counts(cluster: ClusterView, bundle: str, brokers: Iterable[str]) -> dict[str, int]:
    group = _antiaffinity_group(cluster, bundle)
    return {broker: len(group & set(owned_namespaces(cluster, broker))) for broker in brokers} if group else {}


def spread_over_domains(cluster: ClusterView, bundle: str, brokers: list[str]) -> list[str]:
    """Return brokers with the fewest namespaces of the bundle's group, emptiest failure domains first."""
    if not (counts := _group_counts(cluster, bundle, brokers)):
        return brokers
    remaining = brokers
    if cluster.configuration.on("failureDomainsEnabled"):
        domains = {
            broker: name
            for name, domain in sorted(cluster.snapshot.failure_domains.items())
            for broker in domain.brokers
        }
        domain_of = {broker: domains.get(broker, _DEFAULT_DOMAIN) for broker in remaining}
        totals = dict[str, int]()
        for broker in remaining:
            totals[domain_of[broker]] = totals.get(domain_of[broker], 0) + counts[broker]
        least_total = min(totals.values())
        remaining = [broker for broker in remaining if totals[domain_of[broker]] == least_total]
    least = min(counts[broker] for broker in remaining)
    remaining = [broker for broker in remaining if counts[broker] == least]
    _note_dropped(cluster, BundleGate.ANTI_AFFINITY, bundle, brokers, remaining)
    return remaining


def unload_spreads(cluster: ClusterView, bundle: str, current: str, brokers: Iterable[str]) -> bool:
    """Tell if the anti-affinity group lets a bundle leave its broker.

    As upstream: it stays only when all candidates have the same count, above 0. A broker that has fewest already may be
    left; placement keeps the bundle there.
    """
    if not (counts := _group_counts(cluster, bundle, brokers)):
        return True
    least = min(counts.values())
    return least == 0 or counts.get(current, 0) > least or len(set(counts.values())) > 1


def under_topic_cap(cluster: ClusterView, bundle: str, brokers: list[str]) -> list[str]:
    """The brokers with room for topics; all of them when none has."""
    most = cluster.configuration.whole("loadBalancerBrokerMaxTopics")
    with_room = list[str]()
    for broker in brokers:
        topics = cluster.reports[broker].topics + cluster.given(broker)[1]
        if topics <= most:
            with_room.append(broker)
        else:
            cluster.account.measured(BundleGate.TOPIC_CAP, topics, "<=", most, broker, bundle)
    return with_room or brokers


def allowed_by_filters(cluster: ClusterView, bundle: str, brokers: list[str]) -> list[str]:
    """Return the reporting brokers that have room for the bundle's topics and pass all other filters.

    The filters: its group is spread, class and version fit. Stricter than placement, which takes what there is when a
    filter leaves nobody: a bundle that has a broker can stay.
    """
    most = cluster.configuration.whole("loadBalancerBrokerMaxTopics")
    more = cluster.bundles[bundle].topics if bundle in cluster.bundles else 0
    remaining = list[str]()
    for broker in brokers:
        topics = cluster.reports[broker].topics + cluster.given(broker)[1] + more
        if topics <= most or cluster.owns(broker, bundle):
            remaining.append(broker)
        else:
            cluster.account.measured(BundleGate.TOPIC_CAP, topics, "<=", most, broker, bundle)
    remaining = spread_over_domains(cluster, bundle, remaining) if remaining else remaining
    remaining = same_class(
        cluster, bundle, {name: cluster.reports[name].data.load_manager_class_name for name in remaining}
    )
    return (
        latest_version(cluster, bundle, {name: cluster.reports[name].data.broker_version_string for name in remaining})
        or []
    )


def fewest_bundles(cluster: ClusterView, bundle: str, brokers: list[str]) -> list[str]:
    """The brokers that have the fewest bundles of the bundle's namespace."""
    if not brokers:
        return brokers
    counts = {broker: owned_namespaces(cluster, broker).get(namespace_of(bundle), 0) for broker in brokers}
    least = min(counts.values())
    for broker, count in counts.items():
        if count > least:
            cluster.account.measured(BundleGate.EVEN_BUNDLES, count, "<=", least, broker, bundle)
    return [broker for broker in brokers if counts[broker] == least]


def same_class(cluster: ClusterView, bundle: str, classes: dict[str, str | None]) -> list[str]:
    """Return the brokers that run the load manager that decides.

    A broker that does not say which one it runs counts as running another, if the decider names its own and some broker
    does.
    """
    own = _simple_name(cluster.configuration.text("loadManagerClassName"))
    is_told = "loadManagerClassName" in cluster.snapshot.configuration and any(classes.values())
    matching_brokers = [
        broker for broker, name in classes.items() if (not is_told if name is None else _simple_name(name) == own)
    ]
    _note_dropped(cluster, BundleGate.CLASS_FILTER, bundle, classes, matching_brokers)
    return matching_brokers


def _simple_name(name: str) -> str:
    return name.rpartition(".")[2]


def latest_version(cluster: ClusterView, bundle: str, versions: dict[str, str | None]) -> list[str] | None:
    """With `preferLaterVersions`, the brokers of the highest version; None when a version cannot be read."""
    if not cluster.configuration.on("preferLaterVersions") or not versions:
        return list(versions)
    read = dict[str, _Version]()
    for broker, text in versions.items():
        if (version := _parse_version(text)) is None:
            cluster.account.held(BundleGate.VERSION, broker, bundle, f"{str(text)[:40]!r} is no version")
            return None
        read[broker] = version
    highest = max(read.values())
    newest = [broker for broker, version in read.items() if version == highest]
    _note_dropped(cluster, BundleGate.VERSION, bundle, versions, newest)
    return newest


def _parse_version(text: str | None) -> _Version | None:
    """A semantic version that can be compared: a pre-release comes before its release."""
    if (match := _VERSION.fullmatch(text or "")) is None:
        return None
    release = tuple(int(part) for part in match.group(1, 2, 3))
    if (before := match.group(4)) is None:
        return release, (1, ())
    # Numbers are compared as such, and come before names.
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in before.split(".")]
    return release, (0, tuple(parts))


def _note_dropped(
    cluster: ClusterView, gate: BundleGate, bundle: str, brokers: Iterable[str], remaining: list[str]
) -> None:
    staying = set(remaining)
    dropped = [broker for broker in brokers if broker not in staying]
    for broker in dropped[:MAX_NAMED]:
        cluster.account.held(gate, broker, bundle)
    if len(dropped) > MAX_NAMED:
        cluster.account.held(gate, None, bundle, f"and {len(dropped) - MAX_NAMED} brokers more")
