"""Cases of Pulsar's own tests of splits and of the busiest bundles: its inputs and results, under its names."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import pytest

from decisions.bundles.top_bundles import choose_top_bundles
from schemas.bundles import IsolationPolicy, NamespaceBundleStats, TopBundlesLoadData
from tests.decisions.bundles.clusters import MIB, NOW, answer, cluster, state_of

FIRST, SECOND = "tenant/namespace/0x00000000_0xffffffff", "tenant/namespace/0x00000000_0x0fffffff"
LIMITS = {
    "loadBalancerNamespaceMaximumBundles": 100,
    "loadBalancerNamespaceBundleMaxTopics": 100,
    "loadBalancerNamespaceBundleMaxSessions": 100,
    "loadBalancerNamespaceBundleMaxMsgRate": 100,
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": 100,
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": 1,
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 3,
}
AT_ONCE = {"loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0}
BUSY = {"topics": 5, "msgRateIn": 101.0}


def extensible(stats: dict[str, Any] | None, settings: dict[str, Any], count: int = 0) -> dict[str, Any]:
    bundles = [] if stats is None else [{"bundleName": bundle, "stats": stats} for bundle in (FIRST, SECOND)]
    return {
        "now": NOW,
        "loadManager": "extensible",
        "operation": "split",
        "configuration": LIMITS | settings,
        "topBundles": {"broker-1": {"topBundlesLoadData": bundles}},
        "namespaceBundles": {"tenant/namespace": count},
    }


@pytest.mark.parametrize(
    ("stats", "count", "expected"),
    [
        pytest.param(BUSY, 0, 1, id="testNamespaceBundleSplitConditionThreshold"),
        pytest.param(BUSY | {"topics": 1}, 0, 0, id="testNotEnoughTopics"),
        pytest.param(BUSY, 100, 0, id="testNamespaceMaximumBundles"),
        pytest.param(None, 0, 0, id="testEmptyBundleStats"),
    ],
)
def test_broker_splits_as_many_as_upstream(stats, count, expected):
    assert len(answer(extensible(stats, AT_ONCE, count)).decisions) == expected


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        pytest.param({"msgRateIn": 51.0, "msgRateOut": 51.0}, "MsgRate", id="testMaxMsgRate"),
        pytest.param({"topics": 101}, "Topics", id="testMaxTopics"),
        pytest.param({"producerCount": 51, "consumerCount": 51}, "Sessions", id="testMaxSessions"),
        pytest.param(
            {"msgThroughputIn": 50 * MIB + 1.0, "msgThroughputOut": 50 * MIB + 1.0},
            "Bandwidth",
            id="testMaxBandwidthMbytes",
        ),
    ],
)
def test_broker_splits_after_upstreams_hits(stats, reason):
    """The first bundle in the fourth cycle, and as one is split a cycle, the second in the fifth."""
    given, splits = extensible({"topics": 5} | stats, {}), []
    for _ in range(5):
        answered = answer(given)
        splits.append([(decision.bundle, decision.reason) for decision in answered.decisions])
        given["state"] = state_of(answered)
    assert splits == [[], [], [], [(FIRST, reason)], [(SECOND, reason)]]


@pytest.mark.parametrize(
    ("bundles", "topics", "most", "rate", "expected"),
    [
        pytest.param(["0x00000000_0x80000000"], 1, 128, 30_000.0, 0, id="testSplitTaskWhenTopicJustOne"),
        pytest.param(
            ["0x00000000_0x20000000", "0x20000000_0x40000000", "0x40000000_0x60000000"],
            5,
            3,
            60_000.0,
            2,
            id="testLoadBalancerNamespaceMaximumBundles",
        ),
    ],
)
def test_leader_splits_as_many_as_upstream(bundles, topics, most, rate, expected):
    """BundleSplitterTaskTest, where the namespace has one bundle."""
    names = [f"ten/ns/{part}" for part in bundles]
    given = cluster(
        {"broker": {"lastStats": {name: {"topics": topics} for name in names}}, "another": {}},
        operation="split",
        bundles={name: {"longTermData": {"msgRateIn": rate, "msgRateOut": 1.0}} for name in names},
        namespaceBundles={"ten/ns": 1},
        configuration={"loadBalancerNamespaceMaximumBundles": most},
    )
    assert len(answer(given).decisions) == expected


def cuts(algorithm: str, bundle: str, topics: dict[str, Any] | None, **more: Any) -> list[int] | None:
    """The boundaries of a split that a person asks for; None if there is none."""
    given = {"now": NOW, "operation": "split", "split": [bundle], "splitAlgorithm": algorithm, **more}
    decisions = answer(given if topics is None else given | {"topics": {bundle: topics}}).decisions
    return [int(cut, 16) for cut in decisions[0].boundaries or []] if decisions else None


def test_range_is_cut_as_upstream():
    """RangeEquallyDivideBundleSplitAlgorithmTest."""
    middle = 10 + (0xFFFFFFFF - 10) // 2
    assert cuts("range_equally_divide", "pulsar/system/0x0000000a_0xffffffff", None) == [middle]


def test_topic_count_is_cut_as_upstream():
    """TopicCountEquallyDivideBundleSplitAlgorithmTest."""
    first, second, _ = sorted(zlib.crc32(topic) for topic in (b"a", b"b", b"c"))
    assert cuts("topic_count_equally_divide", FIRST, {"a": {}, "b": {}, "c": {}}) == [first + (second - first) // 2]
    assert cuts("topic_count_equally_divide", FIRST, {"a": {}}) is None


@pytest.mark.parametrize(
    ("topics", "positions", "expected"),
    [
        pytest.param(1, [1, 2], None, id="testTotalTopicsSizeLessThan1"),
        pytest.param(2, [], None, id="testSpecifiedPositionsLessThan1"),
        pytest.param(
            2, [0, 1, 100, 200, 500, 800, 1000, 1100], [100, 200, 500, 800], id="testAlgorithmReturnCorrectResult"
        ),
    ],
)
def test_specified_positions_cut_as_upstream(topics, positions, expected):
    """SpecifiedPositionsBundleSplitAlgorithmTest, in a bundle from 1 to 1000."""
    bundle = "t/n/0x00000001_0x000003e8"
    inside = {f"topic{number}": {"hash": 10 + number} for number in range(topics)}
    assert cuts("specified_positions_divide", bundle, inside, splitPositions={bundle: positions}) == expected


FLOW = {
    "loadBalancerNamespaceBundleMaxMsgRate": 1010,
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": 100,
    "flowOrQpsDifferenceThresholdPercentage": 10,
}


def flow(rate_in: float, rate_out: float) -> dict[str, float]:
    return {"msgRateIn": rate_in, "msgRateOut": rate_out, "msgThroughputIn": 1000.0, "msgThroughputOut": 1000.0}


def test_parts_by_flow_stay_below_limits_as_upstream():
    """testSplitBundleByFlowOrQps: 241 topics, whose parts are all below the limits."""
    topics = {
        f"persistent://test-tenant1/test-namespace1/test{number}-partition-{part}": flow(
            24.5 if number < 6 else 25.5, 25.0
        )
        for number in range(1, 13)
        for part in range(20)
    } | {"persistent://test-tenant1/test-namespace1/test695-partition-0": flow(25.0, 35.0)}
    rates = {zlib.crc32(topic.encode()): load["msgRateIn"] + load["msgRateOut"] for topic, load in topics.items()}
    positions = cuts("flow_or_qps_equally_divide", FIRST, topics, configuration=FLOW)
    assert positions
    for start, end in itertools.pairwise([0, *positions]):
        assert 0 < sum(rate for place, rate in rates.items() if start <= place < end) < 1010


def test_full_first_topic_is_cut_off_as_upstream():
    """testFirstPositionIsOverLoad."""
    names = [f"persistent://test-tenant1/test-namespace1/test-partition-{number}" for number in range(5)]
    names.sort(key=lambda name: zlib.crc32(name.encode()))
    topics = {name: flow(24.5, 25.0) for name in names} | {names[0]: flow(1000.0, 1000.0)}
    start, end = (zlib.crc32(name.encode()) for name in names[:2])
    positions = cuts("flow_or_qps_equally_divide", FIRST, topics, configuration=FLOW)
    assert positions
    assert positions[0] == start + (end - start) // 2 + 1


def bundle(number: int) -> str:
    return f"my-tenant/my-namespace{number}/0x00000000_0x0fffffff"


PAIR = {bundle(1): 500.0, bundle(2): 10_000.0}
ISOLATED = {"policy": IsolationPolicy(namespaces=["my-tenant/my-namespace1.*"], primary=["prod1-broker[1-3].*"])}
GROUPED = {"my-tenant/my-namespace2": "namespaceAntiAffinityGroup"}
WITH_POLICIES = {"loadBalancerSheddingBundlesWithPoliciesEnabled": True}


@pytest.mark.parametrize(
    ("rates", "most", "settings", "policies", "groups", "expected"),
    [
        pytest.param(
            {bundle(1): 100_000.0, bundle(2): 500.0, bundle(3): 10_000.0, bundle(4): 0.0},
            3,
            {},
            {},
            {},
            [bundle(2), bundle(3), bundle(1)],
            id="testTopBundlesLoadData",
        ),
        pytest.param(
            {"pulsar/system/0x00000000_0x0fffffff": 500.0, bundle(1): 10_000.0},
            2,
            {},
            {},
            {},
            [bundle(1)],
            id="testSystemNamespace",
        ),
        pytest.param(
            PAIR,
            2,
            {"loadBalancerSheddingExcludedNamespaces": "my-tenant/my-namespace2"},
            {},
            {},
            [bundle(1)],
            id="testSheddingExcludedNamespaces",
        ),
        pytest.param(PAIR, 2, {}, ISOLATED, {}, [bundle(2)], id="testIsolationPolicy"),
        pytest.param(PAIR, 2, {}, {}, GROUPED, [bundle(1)], id="testAntiAffinityGroupPolicy"),
        pytest.param(
            PAIR, 2, WITH_POLICIES, ISOLATED, GROUPED, [bundle(1), bundle(2)], id="testWithPoliciesEnabledConfig"
        ),
        pytest.param(PAIR, 2, {}, ISOLATED, GROUPED, [], id="testWithPoliciesDisabledConfig"),
    ],
)
def test_busiest_bundles_are_upstreams(rates, most, settings, policies, groups, expected):
    """TopKBundlesTest."""
    stats = {name: NamespaceBundleStats(msg_rate_in=rate) for name, rate in rates.items()}
    limit = {"loadBalancerMaxNumberOfBundlesInBundleLoadReport": most}
    reported = {"broker": TopBundlesLoadData.of_busiest(stats, 200)}
    top = choose_top_bundles(reported, settings | limit, "4.x", policies, groups)["broker"]
    assert [entry.bundle_name for entry in top.top_bundles_load_data] == expected
