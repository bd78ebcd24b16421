"""Cases of Pulsar's own TransferShedderTest: its inputs and the results that it states, under its names."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.bundles.decide import decide
from schemas.bundles import BundleAnswer, BundleSnapshot
from tests.decisions.bundles.clusters import NOW

SETUP = (0.36400000000000005, 0.3982762860126121)
USAGES = {1: 2, 2: 4, 3: 6, 4: 80, 5: 90}
LOADS = {1: (1e6, 2e6), 2: (1e6, 3e6), 3: (2e6, 4e6), 4: (2e6, 6e6), 5: (2e6, 7e6)}
OWNERS = {f"my-tenant/ns{number}/{part}": f"broker{number}:8080" for number in USAGES for part in "ab"}
SETTINGS = {
    "loadBalancerDebugModeEnabled": True,
    "loadBalancerSheddingConditionHitCountThreshold": 0,
    "loadBalancerSheddingBundlesWithPoliciesEnabled": False,
}


def broker(number: int) -> str:
    return f"broker{number}:8080"


def snapshot(
    usages: dict[int, float] | None = None,
    loads: dict[int, tuple[float, ...]] | None = None,
    *,
    throughput: dict[int, tuple[float, ...]] | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Brokers with a CPU in percent and top bundles a, b, ...; `throughput` if it is not the bundles' sum."""
    usages, loads = USAGES if usages is None else usages, LOADS if loads is None else loads
    reports = {
        broker(number): {
            "cpu": {"usage": usage, "limit": 100},
            "msgThroughputIn": 1.0,
            "msgThroughputOut": float(sum((throughput or loads).get(number, (2.0,)))),
            "updatedAt": NOW,
        }
        for number, usage in usages.items()
    }
    top = {
        broker(number): {
            "topBundlesLoadData": [
                {"bundleName": f"my-tenant/ns{number}/{'abcde'[index]}", "stats": {"msgThroughputOut": load}}
                for index, load in enumerate(bundles)
            ]
        }
        for number, bundles in loads.items()
    }
    return {
        "now": NOW,
        "operation": "findBundlesForUnloading",
        "loadManager": "extensible",
        "configuration": SETTINGS | (settings or {}),
        "brokerLoadData": reports,
        "topBundles": top,
        **more,
    }


def decided(given: dict[str, Any]) -> BundleAnswer:
    return decide(BundleSnapshot.model_validate(given))


def transfers(answer: BundleAnswer) -> set[tuple[str, str | None]]:
    """Bundle and destination as `5a` and `1`; that the source is the bundle's broker is checked."""
    pairs = set()
    for decision in answer.decisions:
        namespace, part = decision.bundle.split("/")[1:]
        number = namespace.removeprefix("ns")
        assert decision.source_broker == broker(int(number))
        destination = decision.destination_broker
        pairs.add((number + part, destination and destination.removeprefix("broker").removesuffix(":8080")))
    return pairs


def reason_of(answer: BundleAnswer) -> str:
    assert (answer.label, answer.decisions) == ("Skip", [])
    return answer.reason or ""


TWO = {("5a", "1"), ("4a", "2")}
FIVE = {name: {} for name in map(broker, USAGES)}
HUGE = (1e9, 1e9)


@pytest.mark.parametrize(
    ("given", "spread", "moves"),
    [
        pytest.param({}, SETUP, TWO, id="testRecentlyUnloadedBrokers"),
        pytest.param(
            {"state": {"recentlyUnloadedBundles": dict.fromkeys(list(OWNERS)[6:], NOW)}},
            SETUP,
            {("3a", "1")},
            id="testRecentlyUnloadedBundles",
        ),
        pytest.param(
            {"loads": LOADS | {4: HUGE, 5: HUGE}, "throughput": LOADS},
            SETUP,
            {("3a", "1")},
            id="testBundleThroughputLargerThanOffloadThreshold",
        ),
        pytest.param(
            {"usages": USAGES | {4: 55, 5: 65}},
            (0.26400000000000007, 0.27644891028904417),
            {("5a", "1")},
            id="testTargetStdAfterTransfer",
        ),
        pytest.param(
            {"usages": USAGES | {2: 3, 4: 55, 5: 65}},
            (0.262, 0.2780935094532054),
            {("5a", "1"), ("4a", "2")},
            id="testMinBrokerWithLowerLoadThanAvg",
        ),
        pytest.param(
            {"settings": {"loadBalancerMaxNumberOfBrokerSheddingPerCycle": 10}},
            SETUP,
            TWO,
            id="testMaxNumberOfTransfersPerShedderCycle",
        ),
        pytest.param({"loads": LOADS | {5: (2e6, 3e6)}, "throughput": LOADS}, SETUP, TWO, id="testRemainingTopBundles"),
        pytest.param(
            {"usages": USAGES | {4: 200, 5: 1000}},
            (2.4240000000000004, 3.8633332758124816),
            TWO,
            id="testLoadMoreThan100",
        ),
        pytest.param(
            {"usages": {1: 10, 2: 1000}, "loads": {1: (1e6, 2e6, 3e6, 4e6, 5e6), 2: (1e8, 1.8e8, 2.2e8, 2.5e8, 2.5e8)}},
            (5.05, 4.95),
            {("2a", "1"), ("2b", "1"), ("2c", "1"), ("1a", "2"), ("1b", "2"), ("1c", "2"), ("1d", "2")},
            id="testUnloadBundlesGreaterThanTargetThroughput",
        ),
        pytest.param(
            {"usages": {1: 10, 2: 1000}, "loads": {1: (1e6, 2e6, 3e6, 4e6, 5e6), 2: (4.9e8, 5.1e8)}},
            (5.05, 4.95),
            {("2a", "1")},
            id="testUnloadBundlesLessThanTargetThroughputAfterSplit",
        ),
        pytest.param(
            {"usages": {1: 48, 2: 100}, "loads": {1: (2.4e6, 2.4e6), 2: (5e6, 5e6)}},
            (0.74, 0.26),
            {("1a", "2"), ("2a", "1")},
            id="testUnloadBundlesGreaterThanTargetThroughputAfterSplit",
        ),
        pytest.param(
            {
                "usages": dict.fromkeys(range(98), 98) | {98: 99, 99: 1},
                "loads": dict.fromkeys(range(99), (3e7, 7e7)) | {99: (3e5, 7e5)},
            },
            (0.9704000000000005, 0.09652895938523735),
            {("98a", "99")},
            id="testUnderloadOutlier",
        ),
    ],
)
def test_shedder_moves_as_upstream_states(given, spread, moves):
    answer = decided(snapshot(**given))
    assert answer.statistics == pytest.approx(dict(zip(("avg", "std"), spread, strict=True)), rel=1e-7)
    assert transfers(answer) == moves
    assert answer.label == "Success"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param({"usages": {}, "loads": {}, "availableBrokers": FIVE}, "NoBrokers", id="testEmptyBrokerLoadData"),
        pytest.param({"ownership": {}}, "NoBundles", id="testNoOwnerLoadData"),
        pytest.param({"loads": {}}, "NoLoadData", id="testEmptyTopBundlesLoadData"),
        pytest.param(
            {"loads": {1: (1,), 2: (2,), 3: (6,), 4: (10,), 5: (70,)}, "throughput": LOADS},
            "NoBundles",
            id="testSingleTopBundlesLoadData",
        ),
        pytest.param(
            {"loads": dict.fromkeys(USAGES, (0, 0)), "throughput": LOADS}, "NoBundles", id="testZeroBundleThroughput"
        ),
        pytest.param(
            {"usages": {1: 10, 2: 20, 3: 30}, "loads": {1: (30, 30), 2: (40, 40), 3: (50, 50)}},
            "HitCount",
            id="testTargetStd",
        ),
        pytest.param(
            {
                "usages": {1: 50, 2: 100},
                "loads": {1: (1, 5e8), 2: (5e8, 5e8)},
                "settings": {"loadBalancerBrokerLoadTargetStd": 0.2},
            },
            "NoBundles",
            id="testSkipBundlesGreaterThanTargetThroughputAfterSplit",
        ),
    ],
)
def test_shedder_skips_with_upstreams_reason(given, reason):
    assert reason_of(decided(snapshot(**given))) == reason


def test_outdated_load_data_is_skipped_as_upstream():
    given = snapshot()
    assert len(decided(given).decisions) == 2
    for report in given["brokerLoadData"].values():
        report["updatedAt"] = 0
    assert reason_of(decided(given)) == "OutDatedData"


@pytest.mark.parametrize(("unloaded_at", "moves"), [(NOW - 1800 * 1001, TWO), (NOW, set())])
def test_recently_unloaded_broker_cools_down_as_upstream(unloaded_at, moves):
    answer = decided(snapshot(state={"recentlyUnloadedBrokers": {broker(1): unloaded_at}}))
    assert transfers(answer) == moves
    assert (answer.reason == "CoolDown") is not bool(moves)


def test_broker_with_low_traffic_is_filled_as_upstream():
    """testMinBrokerWithLowTraffic."""
    given = snapshot(USAGES | {4: 55, 5: 65})
    given["brokerLoadData"][broker(2)]["msgThroughputEMA"] = 10
    answer = decided(given)
    assert transfers(answer) == TWO
    assert [entry.reason for entry in answer.decisions] == ["Overloaded", "Underloaded"]


def test_overload_outlier_gives_one_bundle_as_upstream():
    """testOverloadOutlier; upstream's destination is any of equals, by a hash map's order."""
    usages = dict.fromkeys(range(99), 1) | {99: 100}
    loads = dict.fromkeys(range(99), (3e5, 7e5)) | {99: (3e7, 7e7)}
    answer = decided(snapshot(usages, loads))
    assert answer.statistics == pytest.approx({"avg": 0.0199, "std": 0.09850375627355534}, abs=1e-5)
    assert [(entry.bundle, entry.reason) for entry in answer.decisions] == [("my-tenant/ns99/a", "Underloaded")]


def test_hit_counts_delay_as_upstream():
    """testLoadBalancerSheddingConditionHitCountThreshold."""
    given = snapshot(settings={"loadBalancerSheddingConditionHitCountThreshold": 3})
    for _ in range(3):
        answer = decided(given)
        assert reason_of(answer) == "HitCount"
        given["state"] = answer.state.model_dump(by_alias=True)
    assert transfers(decided(given)) == TWO


@pytest.mark.parametrize(
    ("usages", "mean", "deviation"),
    [
        pytest.param([1] + [100] * 16, 0.9417647058823528, 0.23294117647058868, id="testHighVarianceLoadStats"),
        pytest.param(list(range(390, 400)), 3.9449999999999994, 0.028722813232795824, id="testLowVarianceLoadStats"),
        pytest.param([10, 20, 30], 0.2000000063578288, 0.08164966587949089, id="testTargetStd"),
    ],
)
def test_spread_is_upstreams_to_single_precision(usages, mean, deviation):
    answer = decided(snapshot(dict(enumerate(usages)), {}))
    assert answer.statistics == pytest.approx({"avg": mean, "std": deviation}, rel=1e-9)


@pytest.mark.parametrize(
    ("namespaces", "transfer", "with_policies", "moves"),
    [
        ("my-tenant/ns5", True, True, {("4a", "1")}),
        ("my-tenant/ns5", False, True, {("4a", None)}),
        (".*", True, False, set()),
        (".*", False, False, set()),
    ],
)
def test_isolated_bundles_stay_as_upstream(namespaces, transfer, with_policies, moves):
    """testBundlesWithIsolationPolicies."""
    settings = {
        "loadBalancerTransferEnabled": transfer,
        "loadBalancerSheddingBundlesWithPoliciesEnabled": with_policies,
    }
    policies = {"policy": {"namespaces": [namespaces], "primary": ["broker5:8080"]}}
    answer = decided(snapshot(settings=settings, isolationPolicies=policies, ownership=OWNERS))
    assert transfers(answer) == moves
    assert moves or reason_of(answer) == "NoBundles"


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("with_policies", [True, False])
def test_bundles_with_policies_move_as_upstream(isolated, grouped, with_policies):
    """testIsLoadBalancerSheddingBundlesWithPoliciesEnabled: its eight rows."""
    policy = {"namespaces": ["my-tenant/ns5"], "primary": ["broker[15]:8080"]}
    answer = decided(
        snapshot(
            settings={"loadBalancerSheddingBundlesWithPoliciesEnabled": with_policies},
            isolationPolicies={"policy": policy} if isolated else {},
            antiAffinityGroups={"my-tenant/ns5": "group"} if grouped else {},
            ownership=OWNERS,
        )
    )
    assert (("5a", "1") in transfers(answer)) is (with_policies or not (isolated or grouped))
