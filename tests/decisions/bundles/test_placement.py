"""Where a bundle goes: filters in their order, then the strategy."""

from __future__ import annotations

import pytest

from tests.decisions.bundles.clusters import answer, broker, bundle, cluster, failing, state_of

NEW = bundle(500)


def placed(brokers, placement="LeastLongTermMessageRate", **more):
    snapshot = cluster(brokers, assign=[NEW], operation="assign", **more)
    snapshot["configuration"]["loadBalancerLoadPlacementStrategy"] = placement
    return answer(snapshot)


def chosen(*arguments, **more):
    answered = placed(*arguments, **more)
    return answered.decisions[0].destination_broker if answered.decisions else None


def test_the_lowest_long_term_rate_wins():
    assert chosen({"a": broker(0, [1], rates=[50]), "b": broker(10, [1], rates=[10])}) == "b"


def test_overloaded_broker_is_infinitely_busy():
    assert chosen({"a": broker(0, [1], rates=[50]), "b": broker(10, [1], cpu=86, rates=[10])}) == "a"


def test_ties_are_settled_by_the_seed_and_shown():
    brokers = {name: broker(10 * number, []) for number, name in enumerate("abcd")}
    seen = {chosen(brokers, seed=seed) for seed in range(40)}
    assert seen == set("abcd")
    assert placed(brokers, seed=7).ties == placed(brokers, seed=7).ties
    assert placed(brokers).ties[0].brokers == ["a", "b", "c", "d"]


def test_preallocated_bundle_counts_until_reported():
    brokers = {"a": broker(0, [1], rates=[10]), "b": broker(10, [1], rates=[60])}
    first = placed(brokers)
    assert list(first.state.preallocated_bundle_data) == ["a"]
    again = placed(brokers, state=state_of(first))
    assert (again.decisions[0].destination_broker, again.ties) == ("a", [])
    other = cluster(brokers, assign=[bundle(501)], operation="assign", state=state_of(first))
    assert answer(other).decisions[0].destination_broker == "b", "100 messages are expected of the first one"


def test_usage_well_below_the_mean_is_one_of_the_best():
    brokers = {"a": broker(0, [1], cpu=10), "b": broker(10, [1], cpu=30), "c": broker(20, [1], cpu=20)}
    assert placed(brokers, "LeastResourceUsageWithWeight").ties[0].brokers == ["a"], "0.1 + 0.1 <= 0.2"
    brokers["a"] = broker(0, [1], cpu=12)
    assert placed(brokers, "LeastResourceUsageWithWeight").ties[0].brokers == ["a", "b", "c"]


def test_placement_averages_move_and_forget_brokers():
    brokers = {"a": broker(0, [1], cpu=50, rates=[9]), "b": broker(10, [], cpu=50)}
    state = {"brokerAvgResourceUsageWithWeight": {"a": 0.0, "b": 0.0, "dead": 0.3}}
    usages = placed(brokers, "LeastResourceUsageWithWeight", state=state).state.broker_avg_resource_usage_with_weight
    assert usages == {"a": pytest.approx(0.05), "b": 0.5}, "an idle broker's history does not count"


def test_round_robin_goes_through_all_brokers():
    brokers, state, seen = {name: broker(10 * number, []) for number, name in enumerate("abc")}, {}, []
    for number in range(4):
        snapshot = cluster(brokers, assign=[bundle(500 + number)], operation="assign", state=state)
        snapshot["configuration"]["loadBalancerLoadPlacementStrategy"] = "RoundRobinBrokerSelector"
        answered = answer(snapshot)
        seen.append(answered.decisions[0].destination_broker)
        state = state_of(answered)
    assert seen == ["a", "b", "c", "a"]


def test_isolated_namespace_uses_its_primaries_only():
    brokers = {"a:8080": broker(0, []), "b:8080": broker(10, []), "c:8080": broker(20, [])}
    policy = {
        "namespaces": ["t/n"],
        "primary": ["a"],
        "secondary": ["b"],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
    }
    assert chosen(brokers, isolationPolicies={"one": policy}) == "a:8080"
    assert chosen(brokers, isolationPolicies={"one": policy | {"namespaces": ["t/other"]}}) != "a:8080"
    policy["auto_failover_policy"]["parameters"]["min_limit"] = "2"
    assert placed(brokers, isolationPolicies={"one": policy}).ties[0].brokers == ["a:8080", "b:8080"]
    del brokers["a:8080"], brokers["b:8080"]
    assert chosen(brokers, isolationPolicies={"one": policy}) is None


def test_anti_affinity_spreads_over_domains_first():
    brokers = {"a": broker(0, []) | {"bundles": [bundle(1, "t/m")]}, "b": broker(10, []), "c": broker(20, [])}
    groups = {"t/n": "Group", "t/m": "group"}
    assert placed(brokers, antiAffinityGroups=groups).ties[0].brokers == ["b", "c"]
    domains = {"one": {"brokers": ["a", "b"]}, "two": {"brokers": ["c"]}}
    on = {"failureDomainsEnabled": True}
    assert chosen(brokers, antiAffinityGroups=groups, failureDomains=domains, configuration=on) == "c"


def test_namespace_bundles_spread_when_enabled():
    brokers = {"a": broker(0, [1], rates=[0]), "b": broker(10, [], rates=[])}
    brokers["b"] |= {"bundles": [bundle(9, "t/m")]}
    answered = placed(brokers, configuration={"loadBalancerDistributeBundlesEvenlyEnabled": "true"})
    assert answered.decisions[0].destination_broker == "b"
    assert failing(answered, "even-bundles") == [("a", NEW)]


def test_broker_over_topic_cap_skipped_unless_all():
    full = {"numTopics": 50_001}
    assert chosen({"a": broker(0, []) | full, "b": broker(10, [])}) == "b"
    assert chosen({"a": broker(0, []) | full}) == "a"


def test_later_versions_are_preferred_when_asked_for():
    brokers = {"a": broker(0, [], brokerVersionString="4.0.7"), "b": broker(10, [], brokerVersionString="4.0.10")}
    assert chosen(brokers, configuration={"preferLaterVersions": True}) == "b"


def test_another_load_managers_broker_is_passed_by():
    brokers = {"a": broker(0, [], loadManagerClassName="x.ExtensibleLoadManagerImpl"), "b": broker(10, [])}
    assert chosen(brokers) == "b"


def test_nothing_is_unloaded_to_where_it_is():
    brokers = {"a": broker(0, [10, 20], cpu=90, rates=[0, 0]), "b": broker(10, [1], cpu=86, rates=[5])}
    configuration = {"loadBalancerDistributeBundlesEvenlyEnabled": False}
    answered = answer(cluster(brokers, "OverloadShedder", configuration=configuration, affinity={bundle(1): "a"}))
    assert (answered.selected, answered.decisions) == ({"a": [bundle(1)]}, [])
    assert (answered.action, answered.gate) == ("hold", "destination-differs")


def test_sole_strategy_chooses_among_candidates():
    brokers = {"a": broker(0, [1], rates=[50]), "b": broker(10, [1], rates=[10]), "c": broker(20, [], rates=[])}
    snapshot = cluster(brokers, assign=[NEW], operation="selectBroker", candidates=["a", "b"])
    assert answer(snapshot).decisions[0].destination_broker == "b"
    assert answer(snapshot | {"candidates": []}).gate == "destination"
