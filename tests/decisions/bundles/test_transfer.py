"""TransferShedder: from the fullest to the emptiest broker, and every reason for not doing so."""

from __future__ import annotations

from decisions.bundles.decide import decide
from schemas.bundles import BundleSnapshot
from tests.decisions.bundles.clusters import MIB, NOW, bundle


def cluster(usages, hits=3, loads=(1, 2), **more):
    """Brokers with a usage, and throughput in proportion; bundles in ascending order of load."""
    brokers = {f"b{number}": usage for number, usage in enumerate(usages)}
    found = {
        "now": NOW,
        "loadManager": "extensible",
        "state": {"unloadConditionHitCount": hits},
        "brokerLoadData": {
            name: {"weightedMaxEMA": usage, "msgThroughputIn": usage * 100 * MIB, "updatedAt": NOW}
            for name, usage in brokers.items()
        },
        "topBundles": {
            name: {
                "topBundlesLoadData": [
                    {"bundleName": bundle(10 * number + index), "stats": {"msgThroughputIn": load * MIB}}
                    for index, load in enumerate(loads)
                ]
            }
            for number, name in enumerate(brokers)
        },
    }
    return found | more


def decided(snapshot):
    return decide(BundleSnapshot.model_validate(snapshot))


def outcome(snapshot):
    answered = decided(snapshot)
    return answered.label, answered.reason


def test_small_bundles_move_fullest_to_emptiest():
    answered = decided(cluster([0.9, 0.5, 0.1], loads=(10, 20, 100)))
    assert (answered.label, answered.reason) == ("Success", "Overloaded")
    moves = {(one.bundle, one.source_broker, one.destination_broker) for one in answered.decisions}
    assert {(bundle(0), "b0", "b2"), (bundle(1), "b0", "b2")} <= moves
    assert answered.state.unload_condition_hit_count == 0
    assert answered.state.recently_unloaded_brokers["b0"] == NOW


def test_the_condition_must_hold_for_four_cycles():
    assert outcome(cluster([0.9, 0.1], hits=2)) == ("Skip", "HitCount")
    assert outcome(cluster([0.9, 0.1], hits=3))[0] == "Success"


def test_a_balanced_cluster_loses_its_hits():
    answered = decided(cluster([0.5, 0.5], hits=3))
    assert (answered.reason, answered.gate) == ("HitCount", "hit-count")
    assert answered.state.unload_condition_hit_count == 0


def test_idle_broker_filled_despite_small_spread():
    assert outcome(cluster([0.3, 0.3, 0.3, 0.01], loads=(1, 2, 3))) == ("Success", "Underloaded")


def test_load_data_too_old_is_ignored():
    snapshot = cluster([0.9, 0.1])
    for one in snapshot["brokerLoadData"].values():
        one["updatedAt"] = NOW - 1_800_001
    assert outcome(snapshot) == ("Skip", "OutDatedData")


def test_oldest_load_data_that_counts_moves_as_much_as_new():
    fresh, older = (cluster([0.9, 0.6, 0.3, 0.1], loads=(1, 2, 3)) for _ in range(2))
    for broker in older["brokerLoadData"].values():
        broker["updatedAt"] = NOW - 1_800_000
    assert decided(older).decisions == decided(fresh).decisions != []


def test_live_broker_without_load_ends_cycle():
    assert outcome(cluster([0.9, 0.1], availableBrokers={"b0": {}, "b1": {}, "b2": {}})) == ("Skip", "NoLoadData")


def test_no_brokers_at_all_is_a_skip():
    assert outcome(cluster([])) == ("Skip", "NoBrokers")


def test_a_broker_rests_after_it_has_given():
    def at(ago):
        state = {"unloadConditionHitCount": 3, "recentlyUnloadedBrokers": {"b0": NOW - ago}}
        return outcome(cluster([0.9, 0.1], state=state))

    assert at(179_999) == ("Skip", "CoolDown")
    assert at(180_000)[0] == "Success"


def test_a_broker_with_one_top_bundle_gives_nothing():
    assert outcome(cluster([0.9, 0.1], loads=(5,))) == ("Skip", "NoBundles")


def test_a_broker_without_top_bundles_gives_nothing():
    assert outcome(cluster([0.9, 0.1], topBundles={})) == ("Skip", "NoLoadData")


def test_bundles_too_large_are_not_moved():
    assert outcome(cluster([0.9, 0.1], loads=(80, 90))) == ("Skip", "NoBundles")


def test_foreign_excluded_and_recent_bundles_stay():
    snapshot = cluster([0.9, 0.1], loads=(1, 2, 3, 4))
    snapshot["ownership"] = {bundle(0): "b1", bundle(1): "b0", bundle(2): "b0", bundle(3): "b0"}
    snapshot["state"]["recentlyUnloadedBundles"] = {bundle(1): NOW - 1}
    answered = decided(snapshot)
    assert {one.bundle for one in answered.decisions} == {bundle(2), bundle(3)}
    snapshot["configuration"] = {"loadBalancerSheddingExcludedNamespaces": "t/n"}
    assert decided(snapshot).reason == "NoBundles"


def test_bundles_with_policies_stay_by_default():
    snapshot = cluster([0.9, 0.1], antiAffinityGroups={"t/n": "group"}, ownership=None)
    assert decided(snapshot).reason == "NoBundles"


def test_grouped_bundles_stay_without_owners():
    permitted = {"loadBalancerSheddingBundlesWithPoliciesEnabled": "true"}
    snapshot = cluster([0.9, 0.1], antiAffinityGroups={"t/n": "group"}, configuration=permitted)
    assert decided(snapshot).reason == "NoBundles"
    snapshot["ownership"] = {bundle(0): "b0", bundle(1): "b0"}
    assert [(one.bundle, one.destination_broker) for one in decided(snapshot).decisions] == [(bundle(0), "b1")]


def test_without_transfer_there_is_no_destination():
    answered = decided(cluster([0.9, 0.1], configuration={"loadBalancerTransferEnabled": "false"}))
    assert {one.destination_broker for one in answered.decisions} == {None}
    assert answered.decisions


def test_a_large_bundle_is_swapped_against_small_ones():
    snapshot = cluster([0.8, 0.2], loads=(50, 60))
    snapshot["topBundles"]["b1"]["topBundlesLoadData"] = [
        {"bundleName": bundle(11), "stats": {"msgThroughputIn": 20 * MIB}}
    ]
    answered = decided(snapshot)
    assert [(one.bundle, one.destination_broker) for one in answered.decisions] == [
        (bundle(11), "b0"),
        (bundle(0), "b1"),
    ]


def test_no_more_brokers_give_than_one_cycle_permits():
    answered = decided(cluster([0.95, 0.94, 0.93, 0.92, 0.1, 0.1, 0.1, 0.1]))
    assert {one.source_broker for one in answered.decisions} == {"b0", "b1", "b2"}
    assert len({one.destination_broker for one in answered.decisions}) == 3
