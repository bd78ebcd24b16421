"""Which bundles are split, and where."""

from __future__ import annotations

import pytest

from tests.decisions.bundles.clusters import MIB, NOW, answer, broker, cluster, state_of

ONE, FULL = "t/n/0x00000000_0x80000000", "t/n/0x00000000_0xffffffff"


def stats(**changes):
    return {"topics": 10, **changes}


def cut(one, **more):
    brokers = {"a": broker(0, []) | {"lastStats": {ONE: one}}, "b": broker(10, [])}
    return answer(cluster(brokers, operation="split", **more))


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (stats(topics=1001), "Topics"),
        (stats(consumerCount=500, producerCount=501), "Sessions"),
        (stats(msgRateIn=15_000.0, msgRateOut=15_001.0), "MsgRate"),
        (stats(msgThroughputIn=101.0 * MIB), "Bandwidth"),
        (stats(topics=1000, consumerCount=1000, msgRateIn=30_000.0, msgThroughputIn=100.0 * MIB), None),
        (stats(topics=1, msgRateIn=1e6), None),
    ],
)
def test_a_bundle_over_a_limit_is_split_in_the_middle(load, reason):
    answered = cut(load)
    assert [(one.reason, one.boundaries) for one in answered.decisions] == [(reason, ["0x40000000"])] * bool(reason)


def test_modular_manager_uses_long_averages():
    known = {ONE: {"longTermData": {"msgRateIn": 30_001.0}}}
    assert cut(stats(), bundles=known).action == "split"
    assert cut(stats(msgRateIn=1e6), bundles={}).gate == "split-needed"


def test_namespace_at_bundle_maximum_not_split():
    assert cut(stats(topics=1001), namespaceBundles={"t/n": 127}).action == "split"
    assert cut(stats(topics=1001), namespaceBundles={"t/n": 128}).gate == "max-bundles"


def test_splits_accepted_in_the_same_round_count():
    other = "t/n/0x80000000_0xffffffff"
    brokers = {"a": broker(0, []) | {"lastStats": {ONE: stats(topics=1001), other: stats(topics=1001)}}}
    answered = answer(cluster(brokers | {"b": broker(10, [])}, operation="split", namespaceBundles={"t/n": 127}))
    assert [one.bundle for one in answered.decisions] == [ONE]


def test_extensible_manager_splits_in_cycle_four():
    state, seen = {}, []
    for _ in range(4):
        answered = cut(stats(msgRateIn=1e6), loadManager="extensible", state=state)
        seen.append(answered.action)
        state = state_of(answered)
    assert seen == ["hold", "hold", "hold", "split"]
    assert state.bundle_split_hit_counts == {}


def test_cycles_before_a_quiet_one_do_not_count():
    state = {}
    for rate in (1e6, 1e6, 1e6, 0.0, 1e6):
        answered = cut(stats(msgRateIn=rate), loadManager="extensible", state=state)
        assert answered.action == "hold"
        state = state_of(answered)


def where(algorithm, topics=None, bundle=FULL, **more):
    given = {} if topics is None else {"topics": {bundle: topics}}
    found = answer({"now": NOW, "operation": "split", "split": [bundle], "splitAlgorithm": algorithm, **given, **more})
    return found.decisions[0].boundaries if found.decisions else None


def test_a_full_range_is_cut_at_0x7fffffff():
    assert where("range_equally_divide") == ["0x7fffffff"]


def test_topics_are_halved_by_their_number():
    topics = {f"persistent://t/n/{name}": {} for name in "abc"}
    hashes = {name: {"hash": at} for name, at in zip(topics, (100, 200, 1000), strict=True)}
    assert where("topic_count_equally_divide", hashes) == ["0x00000096"]
    assert where("topic_count_equally_divide", {"persistent://t/n/a": {}}) is None


def test_positions_outside_are_left_out():
    topics = {"a": {}, "b": {}}
    assert where("specified_positions_divide", topics, splitPositions={FULL: [9, 5, 0]}) == ["0x00000005", "0x00000009"]
    assert where("specified_positions_divide", topics) is None
    assert where("specified_positions_divide_force", splitPositions={FULL: [9]}) == ["0x00000009"]


@pytest.mark.parametrize(
    ("rates", "most", "cuts"),
    [
        ([10, 10, 10], 31, None),
        ([20, 20, 20], 30, ["0x0000000e", "0x00000018"]),
        ([10, 10, 40], 30, ["0x00000018"]),
        ([40, 0, 10], 30, ["0x00000013"]),
    ],
)
def test_traffic_cut_before_passing_limit(rates, most, cuts):
    topics = {f"t{at}": {"hash": 10 * at + 8, "msgRateIn": float(rate)} for at, rate in enumerate(rates)}
    configuration = {"loadBalancerNamespaceBundleMaxMsgRate": most}
    found = where("flow_or_qps_equally_divide", topics, configuration=configuration)
    assert found == cuts


@pytest.mark.parametrize(
    ("algorithm", "action", "positions"),
    [
        ("range_equally_divide", "split", ["0x40000000"]),
        ("topic_count_equally_divide", "hold", None),
        ("flow_or_qps_equally_divide", "hold", None),
        ("specified_positions_divide", "hold", None),
    ],
)
def test_split_without_topics_names_algorithm(algorithm, action, positions):
    found = cut(stats(topics=2000), configuration={"defaultNamespaceBundleSplitAlgorithm": algorithm})
    assert (found.action, [one.boundaries for one in found.decisions]) == (
        action,
        [positions] if action == "split" else [],
    )
    if action == "hold":
        assert found.gate == "splittable"
        assert algorithm in found.readings[-1].detail


def test_a_range_of_one_hash_is_not_split():
    assert where("range_equally_divide", bundle="t/n/0x00000001_0x00000002") is None


def test_a_name_without_a_range_is_not_split():
    assert where("range_equally_divide", bundle="t/n/everything") is None
