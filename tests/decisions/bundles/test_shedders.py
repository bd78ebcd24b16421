"""The shedders of the modular load manager, in scenarios of which the outcome was worked out by hand."""

from __future__ import annotations

import pytest

from decisions.bundles.configuration import ConfigurationError
from tests.decisions.bundles.clusters import MIB, NOW, answer, broker, bundle, cluster, failing, state_of


def test_overloaded_broker_sheds_to_five_points_below():
    brokers = {"a": broker(0, [10, 20, 30, 40], cpu=90), "b": broker(10, [1], cpu=5)}
    answered = answer(cluster(brokers, "OverloadShedder"))
    assert answered.selected == {"a": [bundle(3)]}, "100 MiB/s times (0.90 - 0.85 + 0.05)"
    assert answered.decisions[0].destination_broker == "b"
    assert ("b", None) in failing(answered, "broker-overloaded")


def test_exactly_the_threshold_is_overloaded():
    at, below = (
        answer(
            cluster(
                {"a": broker(0, [10, 20], cpu=cpu), "b": broker(10, [1])},
                "OverloadShedder",
                configuration={"loadBalancerBrokerOverloadedThresholdPercentage": 50},
            )
        )
        for cpu in (50, 49.9)
    )
    assert at.selected == {"a": [bundle(1)]}
    assert below.selected == {}


def test_sole_bundle_stays_on_hot_broker():
    answered = answer(cluster({"a": broker(0, [500], cpu=99), "b": broker(10, [1])}, "OverloadShedder"))
    assert answered.action == "hold"
    assert failing(answered, "more-than-one-bundle") == [("a", None)]


def test_grace_period_blocks_second_unload():
    def decided(at):
        state = {"recentlyUnloadedBundles": {bundle(1): at}}
        return answer(cluster({"a": broker(0, [1, 9], cpu=90), "b": broker(10, [1])}, "OverloadShedder", state=state))

    grace = 30 * 60_000
    assert decided(NOW - grace).selected == {"a": [bundle(0)]}
    assert failing(decided(NOW - grace), "recently-unloaded") == [("a", bundle(1))]
    assert decided(NOW - grace - 1).selected == {"a": [bundle(1)]}


def test_high_broker_sheds_share_of_throughput():
    brokers = {"a": broker(0, [100, 60, 40, 20], cpu=80), "b": broker(10, [1], cpu=20), "c": broker(20, [1], cpu=20)}
    answered = answer(cluster(brokers))
    assert answered.selected == {"a": [bundle(0)]}, "220 MiB/s times (0.80 - 0.40 - 0.10 + 0.05) = 77 MiB/s"
    assert answered.state.broker_avg_resource_usage["a"] == pytest.approx(0.8)


def test_usage_averaged_from_first_value():
    brokers = {"a": broker(0, [1, 2], cpu=10), "b": broker(10, [1], cpu=10)}
    first = answer(cluster(brokers))
    later = {"a": broker(0, [1, 2], cpu=60), "b": broker(10, [1], cpu=10)}
    second = answer(cluster(later) | {"state": state_of(first)})
    assert second.state.broker_avg_resource_usage["a"] == pytest.approx(0.9 * 0.1 + 0.1 * 0.6)


def test_small_throughput_not_shed():
    brokers = {"a": broker(0, [10, 10], cpu=80), "b": broker(10, [1], cpu=20), "c": broker(20, [1], cpu=20)}
    answered = answer(cluster(brokers))
    assert answered.action == "hold"
    assert failing(answered, "min-throughput") == [("a", None)]


@pytest.mark.parametrize(("switched_on", "selected"), [(False, {}), (True, {"b0": [bundle(0)]})])
def test_idle_broker_fed_only_with_lower_boundary(switched_on, selected):
    """An idle broker beside five that are half used."""
    brokers = {f"b{number}": broker(10 * number, [200, 100], cpu=50) for number in range(5)}
    configuration = {"lowerBoundarySheddingEnabled": switched_on}
    answered = answer(cluster(brokers | {"idle": broker(90, [], cpu=0)}, configuration=configuration))
    assert answered.selected == selected


def test_lower_boundary_updates_average_twice():
    brokers = {"a": broker(0, [1, 2], cpu=50), "b": broker(10, [1], cpu=50)}
    state = {"brokerAvgResourceUsage": {"a": 0.0, "b": 0.5}}
    answered = answer(cluster(brokers, configuration={"lowerBoundarySheddingEnabled": True}, state=state))
    assert answered.state.broker_avg_resource_usage["a"] == pytest.approx(0.05 * 0.9 + 0.05)


def test_reading_above_limit_left_out_of_usage():
    brokers = {"a": broker(0, [1, 2], cpu=40, bandwidthIn={"usage": 300, "limit": 100}), "b": broker(10, [1], cpu=40)}
    assert answer(cluster(brokers)).state.broker_avg_resource_usage["a"] == pytest.approx(0.4)


def test_highest_message_rate_sheds_difference_share():
    brokers = {"a": broker(0, [1, 1, 1], rates=[8000, 1500, 500]), "b": broker(10, [1], rates=[1000])}
    answered = answer(cluster(brokers, "UniformLoadShedder"))
    assert answered.selected == {"a": [bundle(1), bundle(2)]}, "1800 needed; a bundle may be 1000 larger than the need"
    assert failing(answered, "fits-what-is-needed") == [("a", bundle(0))]


def test_throughput_counts_where_rates_are_equal():
    brokers = {"a": broker(0, [10, 40, 50], rates=[100, 100, 100]), "b": broker(10, [10], rates=[300])}
    answered = answer(cluster(brokers, "UniformLoadShedder"))
    assert answered.selected == {"a": [bundle(0)]}, "18 MiB/s needed"


def test_a_need_below_the_minimum_moves_nothing():
    brokers = {"a": broker(0, [1, 1], rates=[300, 300]), "b": broker(10, [1], rates=[100])}
    assert failing(answer(cluster(brokers, "UniformLoadShedder")), "min-unload-messages") == [("a", None)]


def test_old_uniform_rule_misses_true_maximum():
    brokers = {
        "a": broker(0, [10, 10], rates=[50_000, 4000]),
        "b": broker(10, [300, 300], rates=[100, 100]),
        "c": broker(20, [10, 10], rates=[100, 100]),
    }
    configuration = {"maxUnloadPercentage": 0.5, "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 0}
    new, old = (
        answer(cluster(brokers, name, configuration=configuration))
        for name in ("UniformLoadShedder", "UniformLoadShedder-21016")
    )
    assert new.selected == {"a": [bundle(1)]}
    assert old.selected == {}, "b overwrote the rate that a had set, since its throughput is higher"


def hot_pair(cpu, hits, **more):
    brokers = {"a": broker(0, [1] * 4, cpu=cpu, rates=[4000, 3000, 2000, 1000]), "b": broker(10, [1], rates=[0])}
    state = {"avgShedder": {"brokerHitCountForLow": hits[0], "brokerHitCountForHigh": hits[1]}}
    return answer(cluster(brokers, "AvgShedder", state=state, **more))


def test_distant_pair_fires_in_second_cycle():
    """Then its counters are cleared."""
    first = hot_pair(60, ({}, {}))
    assert (first.action, first.gate) == ("hold", "hit-count")
    counters = first.state.avg_shedder
    assert counters.broker_hit_count_for_high == counters.broker_hit_count_for_low == {"a": 1, "b": 1}
    second = hot_pair(60, (counters.broker_hit_count_for_low, counters.broker_hit_count_for_high))
    assert second.selected == {"a": [bundle(2)]}, "2000 messages of 10000 are a fifth; never more than is needed"
    assert second.decisions[0].destination_broker == "b"
    assert second.state.avg_shedder.broker_hit_count_for_high == {}


def test_close_pair_fires_in_eighth_cycle():
    assert hot_pair(20, ({"a": 6, "b": 6}, {})).action == "hold"
    assert hot_pair(20, ({"a": 7, "b": 7}, {})).selected == {"a": [bundle(2)]}


def test_a_pair_close_together_forgets_its_hits():
    assert hot_pair(14, ({"a": 7}, {"b": 1})).state.avg_shedder.broker_hit_count_for_low == {}


def test_pulsar_5_pairs_brokers_without_being_told():
    snapshot = cluster({"a": broker(0, [1, 1]), "b": broker(10, [])}) | {"profile": "5.0", "configuration": {}}
    assert answer(snapshot).strategy == "AvgShedder"


def test_half_of_avg_shedder_refused_as_upstream():
    with pytest.raises(ConfigurationError, match="AvgShedder has to be both"):
        answer(cluster({}) | {"configuration": {"loadBalancerLoadSheddingStrategy": "AvgShedder"}})


def test_deviation_shedder_moves_only_useful_load():
    loads = {"a": {bundle(0): 50.0, bundle(1): 30.0, bundle(2): 10.0}, "b": {bundle(10): 5.0}, "c": {}}
    brokers = {"a": broker(0, [1, 1, 1]), "b": broker(10, [1]), "c": broker(20, [])}
    answered = answer(cluster(brokers, "DeviationShedder", deviationLoads=loads))
    assert [(one.bundle, one.destination_broker) for one in answered.decisions] == [(bundle(0), "c")]


def test_oversized_share_wraps_as_in_java():
    brokers = {"a": broker(0, [20_000, 1]), "b": broker(10, [1 / MIB])}
    answered = answer(cluster(brokers, "UniformLoadShedder"))
    assert answered.selected == {}, "the need saturates at 2^31 - 1, and adding 1000 to it wraps"


def test_sole_strategy_accepts_one_broker():
    stats = {f"bundle-{number}": {"msgThroughputIn": number * 10.0 * MIB} for number in (1, 2, 3)}
    brokers = {"broker1": {"cpu": {"usage": 99, "limit": 100}, "lastStats": stats}}
    snapshot = cluster(brokers, "OverloadShedder")
    assert answer(snapshot).gate == "enough-brokers"
    alone = answer(snapshot | {"operation": "findBundlesForUnloading"})
    assert alone.selected == {"broker1": ["bundle-3"]}
    assert alone.state.recently_unloaded_bundles == {}
