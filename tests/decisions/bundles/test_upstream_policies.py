"""Cases of Pulsar's own tests of isolation, anti-affinity and filters of brokers: what goes in and comes out."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.bundles.candidates import fewest_bundles, isolated_brokers, spread_over_domains
from decisions.bundles.cluster import ClusterView, view_cluster
from decisions.bundles.shedders.transfer import filter_brokers
from schemas.bundles import BundleSnapshot
from tests.decisions.bundles.clusters import cluster

ALL = "0x00000000_0xffffffff"


def view(**fields: Any) -> ClusterView:
    return view_cluster(BundleSnapshot.model_validate(cluster(fields.pop("brokers", {}), **fields)))


@pytest.mark.parametrize(
    ("owned", "candidates", "expected"),
    [
        ({}, [], []),
        ({}, ["1"], ["1"]),
        ({"1": 1}, ["1"], ["1"]),
        ({"1": 1}, ["1", "2"], ["2"]),
        ({"1": 1, "2": 1}, ["1", "2"], ["1", "2"]),
        ({"1": 1, "2": 2}, ["1", "2"], ["1"]),
        ({"1": 1, "2": 2, "3": 1}, ["1", "2", "3"], ["1", "3"]),
    ],
)
def test_namespace_spreads_as_upstream(owned, candidates, expected):
    """testRemoveMostServicingBrokersForNamespace."""
    bundles = {
        name: [f"t/n/0x{name}000000{at}_0x{name}0000010" for at in range(count)] for name, count in owned.items()
    }
    brokers = {name: {"bundles": bundles.get(name, [])} for name in "123"}
    assert fewest_bundles(view(brokers=brokers), "t/n/0x00000000_0x40000000", candidates) == expected


@pytest.mark.parametrize(
    ("owners", "domains", "expected"),
    [
        *((list("0213")[:count], True, names) for count, names in enumerate(["0123", "23", "13", "3", "0123"])),
        *((list("012")[:count], False, names) for count, names in enumerate(["012", "12", "2", "012"])),
    ],
)
def test_anti_affinity_filters_as_upstream(owners, domains, expected):
    """testAntiAffinityNamespaceFilteringWithDomain and its twin without domains; `owners` have one namespace each."""
    names = "0123" if domains else "012"
    seen = view(
        brokers={name: {"bundles": [f"t/ns{owners.index(name)}/{ALL}"] if name in owners else []} for name in names},
        antiAffinityGroups={f"t/ns{number}": "my-antiaffinity" for number in range(5)},
        failureDomains={"domain-0": {"brokers": ["0", "1"]}, "domain-1": {"brokers": ["2", "3"]}} if domains else {},
        configuration={"failureDomainsEnabled": domains},
    )
    assert spread_over_domains(seen, f"t/ns{len(owners)}/{ALL}", list(names)) == list(expected)


def policy(min_limit: int, primary: str, secondary: str, namespaces: str) -> dict[str, Any]:
    parameters = {"min_limit": str(min_limit), "usage_threshold": "100"}
    failover = {"policy_type": "min_available", "parameters": parameters}
    return {
        "isolationPolicies": {
            "policy1": {
                "namespaces": [namespaces],
                "primary": [primary],
                "secondary": [secondary],
                "auto_failover_policy": failover,
            }
        }
    }


@pytest.mark.parametrize("port", ["", ":8080"])
@pytest.mark.parametrize(
    ("min_limit", "live", "expected"),
    [(1, "123", "1"), (1, "23", "2"), (1, "3", ""), (2, "123", "12"), (2, "23", "2"), (2, "3", "")],
)
@pytest.mark.parametrize("manager", ["modular", "extensible"])
def test_isolation_leaves_upstreams_brokers(manager, min_limit, live, expected, port):
    """testNamespaceIsolationPoliciesForPrimaryAndSecondaryBrokers, and the filter's by hosts and by broker ids."""
    policies = policy(min_limit, f"broker1{port}", f"broker2{port}", "my-tenant/my-ns.*")
    names = [f"broker{number}:8080" for number in live]
    bundle = f"my-tenant/my-ns/{ALL}"
    if manager == "modular":
        remaining = isolated_brokers(view(brokers={key: {} for key in names}, **policies), bundle, names)
    else:
        remaining = filter_brokers(
            view(loadManager=manager, availableBrokers={key: {} for key in names}, **policies), bundle
        )
    assert remaining == [f"broker{number}:8080" for number in expected]


@pytest.mark.parametrize(("able", "expected"), [("123", "123"), ("23", "23")])
def test_persistent_topics_filter_as_upstream(able, expected):
    """testFilterWithPersistentOrNonPersistentDisabled, its half of persistent topics."""
    brokers = {name: {"persistentTopicsEnabled": name in able} for name in "123"}
    assert filter_brokers(view(loadManager="extensible", availableBrokers=brokers), f"t/n/{ALL}") == list(expected)


DOMAIN = "messaging.use.example.com"
POLICY = ("prod1-broker[1-3].messaging.use.example.com", "prod1-broker.*.use.example.com", "pulsar/use/test.*")


@pytest.mark.parametrize(
    ("namespace", "numbers", "expected"),
    [
        pytest.param("pulsar/use/testns-1", range(10), [1, 2, 3], id="testFindBrokers-primary"),
        pytest.param("pulsar/use/testns-1", [0, 2, 3, 4, 5], [0, 2, 3, 4, 5], id="testFindBrokers-secondary"),
        pytest.param("pulsar/use/testns-1", [1, 4], [1, 4], id="testBrokerAssignment"),
        pytest.param("pulsar/use/testns-1", [2, 5], [2, 5], id="testIsPrimaryOrSecondaryBroker"),
        pytest.param("no/such/namespace", range(10), [0, 4, 5, 6, 7, 8, 9], id="testGetPolicyByNamespace"),
    ],
)
def test_isolation_patterns_match_as_upstream(namespace, numbers, expected):
    """NamespaceIsolationPolicyImplTest; brokers of another region are never chosen by the policy."""
    hosts = [f"prod1-broker{number}.{DOMAIN}:8080" for number in numbers]
    abroad = [f"prod1-broker{number}.messaging.usw.example.com:8080" for number in range(10)]
    brokers = hosts + (abroad if namespace.startswith("pulsar") else [])
    seen = view(brokers={key: {} for key in brokers}, **policy(3, *POLICY))
    assert set(isolated_brokers(seen, f"{namespace}/{ALL}", brokers)) == {
        f"prod1-broker{number}.{DOMAIN}:8080" for number in expected
    }


@pytest.mark.parametrize(
    ("versions", "prefers", "expected"),
    [
        ("", True, ""),
        ("2.10.0 2.10.1", False, "01"),
        ("2.10.0 2.10.1 2.10.1 2.10.1", True, "123"),
        ("2.10.0 2.10.1-SNAPSHOT 2.10.1 2.10.1", True, "23"),
        ("2.10.0 2.10.1-SNAPSHOT 2.10.1 2.10.2-SNAPSHOT", True, "3"),
        ("1.1.0-SNAPSHOT 1.1.0-SNAPSHOT 1.2.0-SNAPSHOT", True, "2"),
        ("xxx", True, ""),
    ],
)
def test_version_filter_keeps_upstreams_brokers(versions, prefers, expected):
    """BrokerVersionFilterTest of both managers."""
    live = {str(number): {"brokerVersion": version} for number, version in enumerate(versions.split())}
    seen = view(loadManager="extensible", availableBrokers=live, configuration={"preferLaterVersions": prefers})
    assert filter_brokers(seen, f"t/n/{ALL}") == list(expected)


def test_topic_cap_filters_as_upstream():
    """BrokerMaxTopicCountFilterTest: at the maximum is too many, and a broker without a report passes."""
    most = 50_000
    loads = {"1": {"topics": most}, "2": {}, "3": {"topics": 2 * most}}
    seen = view(loadManager="extensible", availableBrokers={key: {} for key in "1234"}, brokerLoadData=loads)
    assert filter_brokers(seen, f"t/n/{ALL}") == ["2", "4"]
