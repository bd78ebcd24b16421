"""Filters of brokers as upstream has them: abilities, classes, versions, and what is left where one fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.decisions.bundles.clusters import NOW, answer, broker, bundle, cluster


def top_bundles(*names, topics=5, load=0.0):
    """The busiest bundles of a broker, the busiest last."""
    stats = [{"topics": topics, "msgThroughputIn": load * place} for place in range(1, len(names) + 1)]
    return {"topBundlesLoadData": [{"bundleName": one, "stats": of} for one, of in zip(names, stats, strict=True)]}


EXTENSIBLE = {
    "family": "bundles",
    "now": NOW,
    "loadManager": "extensible",
    "state": {"unloadConditionHitCount": 3},
    "brokerLoadData": {
        "a": {"weightedMaxEMA": 0.9, "msgThroughputIn": 9e7, "updatedAt": NOW},
        "b": {"weightedMaxEMA": 0.1, "msgThroughputIn": 1e7, "updatedAt": NOW},
    },
    "topBundles": {"a": top_bundles(bundle(1), bundle(2), load=1e6)},
}


def placed(a, b, **more):
    brokers = {"a": broker(0, [1.0], rates=[500.0], **a), "b": broker(5, [1.0], rates=[10.0], **b)}
    found = answer(cluster(brokers, operation="assign", assign=[bundle(99)], **more))
    return [one.destination_broker for one in found.decisions]


@pytest.mark.parametrize("profile", ["4.x", "default"])
def test_persistent_bundles_need_persistent_brokers(profile):
    strategies = {"loadBalancerLoadPlacementStrategy": "LeastProjectedUsage"} if profile == "default" else {}
    none = {"persistentTopicsEnabled": False, "nonPersistentTopicsEnabled": True}
    assert placed({}, {}, profile=profile, configuration=strategies) == ["b"]
    assert placed({}, none, profile=profile, configuration=strategies) == ["a"]
    policy = {"isolationPolicies": {"p": {"namespaces": ["t/n"], "primary": ["b"]}}}
    assert placed({}, none, profile=profile, configuration=strategies, **policy) == ["b"], "asked without a policy only"


def test_transfers_need_a_broker_of_persistent_topics():
    for able, moves in ((True, True), (False, False)):
        live = {"a": {}, "b": {"persistentTopicsEnabled": able, "nonPersistentTopicsEnabled": True}}
        assert bool(answer(EXTENSIBLE | {"availableBrokers": live}).decisions) is moves


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        ("4.1.0", "4.1.0-rc1", ["a"]),
        ("4.1.0-rc1", "4.0.9", ["a"]),
        ("4.1.0-rc.10", "4.1.0-rc.2", ["a"]),
        ("4.1.0+build7", "4.1.0", ["b"]),
        ("4.1.0", None, ["b"]),
        ("4.1.0", "4.1", ["b"]),
    ],
)
def test_highest_version_preferred_if_all_readable(one, other, kept):
    of_b = {} if other is None else {"brokerVersionString": other}
    more = {"configuration": {"preferLaterVersions": True}}
    assert placed({"brokerVersionString": one}, of_b, **more) == kept


def test_an_unreadable_version_permits_no_transfer():
    more = {"configuration": {"preferLaterVersions": True}}
    for version, moves in (({"brokerVersion": "4.0.7"}, True), ({}, False)):
        live = {"a": {"brokerVersion": "4.0.7"}, "b": version}
        assert bool(answer(EXTENSIBLE | more | {"availableBrokers": live}).decisions) is moves


def test_broker_without_class_differs_from_decider():
    name = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
    told = {"configuration": {"loadManagerClassName": name}}
    assert placed({"loadManagerClassName": name}, {}, **told) == ["a"]
    assert placed({}, {}) == ["b"]


def test_what_a_dead_broker_was_given_is_given_again():
    given = {"state": {"preallocatedBundleData": {"dead": {bundle(99): {}}}}}
    assert placed({}, {}, **given) == ["b"]


def test_extensible_brokers_split_ten_each():
    def top(first):
        return top_bundles(
            *(f"t/n/0x{one:04x}0000_0x{one + 1:04x}0000" for one in range(first, first + 12)), topics=2000
        )

    hits = {one["bundleName"]: 5 for start in (0, 20) for one in top(start)["topBundlesLoadData"]}
    found = answer(
        {
            **EXTENSIBLE,
            "operation": "split",
            "topBundles": {"a": top(0), "b": top(20)},
            "state": {"bundleSplitHitCounts": hits},
        }
    )
    assert Counter(one.source_broker for one in found.decisions) == {"a": 10, "b": 10}


def test_transfer_shedder_alone_heeds_no_switch():
    off = {"configuration": {"loadBalancerSheddingEnabled": False}, "leader": False}
    assert not answer(EXTENSIBLE | off).decisions
    assert answer(EXTENSIBLE | off | {"operation": "findBundlesForUnloading"}).decisions
