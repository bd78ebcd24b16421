"""Cases of Pulsar's own tests of the modular shedders: its inputs and the results that it states, under its names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.decisions.bundles.clusters import MIB, answer, cluster, state_of


def usage(percent: float) -> dict[str, float]:
    return {"usage": percent, "limit": 100}


def both_ways(load: float, signal: str = "msgThroughput") -> dict[str, float]:
    return {f"{signal}In": load, f"{signal}Out": load}


def bandwidth(percent: float) -> dict[str, Any]:
    return {"bandwidthIn": usage(percent), "bandwidthOut": usage(percent)}


def known(loads: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Averages of bundles, of which upstream's tests set the short term alone."""
    return {bundle: {"shortTermData": load} for bundle, load in loads.items()}


def selected(strategy: str, brokers: dict[str, Any], bundles: dict[str, Any], **more: Any) -> dict[str, list[str]]:
    given = cluster(brokers, strategy, bundles=bundles, operation="findBundlesForUnloading", **more)
    return answer(given).selected


SMALL = known({"bundle-1": both_ways(1000)})
TEN = {f"bundle-{number}": both_ways(number * MIB) for number in range(1, 11)}
TWIN = {f"broker2-bundle-{number + 10}": both_ways(number * MIB) for number in range(1, 11)}
HOT = bandwidth(99.9) | both_ways(55 * MIB) | {"bundles": list(TEN)}
FULL = {"cpu": usage(1000), "memory": usage(5000), "directMemory": usage(5000)}
LATELY = {"state": {"recentlyUnloadedBundles": {"bundle-10": 1, "bundle-9": 1}}}


@pytest.mark.parametrize(
    ("strategy", "brokers", "bundles"),
    [
        *(
            pytest.param(strategy, brokers, bundles, id=f"{strategy}-{name}")
            for strategy in ("OverloadShedder", "ThresholdShedder")
            for name, brokers, bundles in (
                ("testNoBrokers", {}, {}),
                ("testBrokersWithNoBundles", {"broker-1": bandwidth(99.9)}, {}),
                ("testBrokerWithSingleBundle", {"broker-1": bandwidth(99.9) | {"bundles": ["bundle-1"]}}, SMALL),
                ("testBrokerNotOverloaded", {"broker-1": bandwidth(50) | {"bundles": ["bundle-1"]}}, SMALL),
            )
        ),
        pytest.param(
            "ThresholdShedder",
            {"broker-1": FULL | bandwidth(50) | {"bundles": ["bundle-1"]}},
            SMALL,
            id="ThresholdShedder-testBrokerNotReachThreshold",
        ),
        pytest.param(
            "UniformLoadShedder",
            {"broker-1": bandwidth(99.9) | {"bundles": ["bundle-1"]}},
            SMALL,
            id="UniformLoadShedder-testBrokerWithSingleBundle",
        ),
    ],
)
def test_shedder_holds_as_upstream(strategy, brokers, bundles):
    assert selected(strategy, brokers, bundles) == {}


@pytest.mark.parametrize(
    ("strategy", "more", "numbers"),
    [
        pytest.param("OverloadShedder", {}, [10, 9], id="OverloadShedder-testBrokerWithMultipleBundles"),
        pytest.param("OverloadShedder", LATELY, [8, 7], id="OverloadShedder-testFilterRecentlyUnloaded"),
        pytest.param("ThresholdShedder", {}, [10, 9, 8], id="ThresholdShedder-testBrokerWithMultipleBundles"),
        pytest.param("ThresholdShedder", LATELY, [8, 7, 6, 5], id="ThresholdShedder-testFilterRecentlyUnloaded"),
    ],
)
def test_hot_broker_gives_the_bundles_of_upstream(strategy, more, numbers):
    for hot in (HOT, HOT | FULL) if strategy == "ThresholdShedder" else (HOT,):
        brokers = {"broker-1": hot, "broker2": {"bundles": list(TWIN)}}
        assert selected(strategy, brokers, known(TEN | TWIN), **more) == {
            "broker-1": [f"bundle-{number}" for number in numbers]
        }


def lower_boundary(idle: int | None, load: float, counts: dict[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Eleven brokers at 80 percent, one of them idle."""
    brokers, loads = {}, {}
    for number in range(11):
        bundles = [f"broker-{number}-bundle-{index}" for index in range(counts.get(number, counts[-1]))]
        own = both_ways(0.0 if number == idle else load * MIB)
        loads |= dict.fromkeys(bundles, own)
        brokers[f"broker-{number}"] = bandwidth(0 if number == idle else 80) | own | {"bundles": bundles}
    return brokers, known(loads)


@pytest.mark.parametrize(
    ("given", "giver"),
    [
        pytest.param((10, 100, {-1: 10}), True, id="testLowerBoundaryShedding"),
        pytest.param((None, 80, {-1: 10}), False, id="testLowerBoundarySheddingNoBrokerToOffload"),
        pytest.param((5, 100, {3: 10, -1: 1}), "broker-3", id="testLowerBoundarySheddingBrokerWithOneBundle"),
    ],
)
def test_lower_boundary_sheds_as_upstream(given, giver):
    brokers, bundles = lower_boundary(*given)
    assert selected("ThresholdShedder", brokers, bundles) == {}
    picked = selected("ThresholdShedder", brokers, bundles, configuration={"lowerBoundarySheddingEnabled": True})
    assert bool(picked) is bool(giver)
    if isinstance(giver, str):
        assert [(broker, len(bundles)) for broker, bundles in picked.items()] == [(giver, 1)]


@pytest.mark.parametrize(("loads", "most", "count"), [([1] * 20, 2, 2), (range(1, 11), -1, None)])
def test_uniform_shedder_counts_as_upstream(loads, most, count):
    """testMaxUnloadBundleNumPerShedding and testBrokerWithMultipleBundles."""
    bundles = {f"bundle-{index}": both_ways(load * MIB) for index, load in enumerate(loads)}
    brokers = {"broker-1": both_ways(sum(loads) * MIB) | {"bundles": list(bundles)}, "broker2": {}}
    settings = {"maxUnloadBundleNumPerShedding": most}
    picked = selected("UniformLoadShedder", brokers, known(bundles), configuration=settings)
    assert len(picked["broker-1"]) == count or (count is None and picked["broker-1"])


RATE_ONLY = {
    "loadBalancerMsgRateDifferenceShedderThreshold": 50,
    "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 0,
}
BYTES_ONLY = {
    "loadBalancerMsgRateDifferenceShedderThreshold": 0,
    "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 2,
}


@pytest.mark.parametrize(
    ("settings", "source"),
    [(RATE_ONLY, "broker2"), (BYTES_ONLY, "broker3"), (RATE_ONLY | dict([[*BYTES_ONLY.items()][1]]), "broker2")],
)
def test_uniform_shedder_picks_upstreams_broker(settings, source):
    """testOverloadBrokerSelect: rate goes before throughput."""
    loads = {0: (50_000, 50), 1: (60_000, 60), 2: (70_000, 70), 3: (10_000, 80), 4: (20_000, 10)}
    brokers, bundles = {}, {}
    for number, (rate, size) in loads.items():
        names = [f"broker-{number}-bundle-{index}" for index in range(5)]
        brokers[f"broker{number}"] = {"msgRateIn": rate, "msgThroughputIn": size * MIB, "bundles": names}
        bundles |= {key: {"msgRateIn": rate / 5, "msgThroughputIn": size * MIB / 5} for key in names}
    limits = {"maxUnloadBundleNumPerShedding": 1, "maxUnloadPercentage": 0.5}
    picked = selected("UniformLoadShedder", brokers, known(bundles), configuration=limits | settings)
    assert [(broker, len(names)) for broker, names in picked.items()] == [(source, 1)]


@pytest.mark.parametrize("settings", [RATE_ONLY, BYTES_ONLY])
def test_uniform_shedder_skips_idle_bundles_as_upstream(settings):
    """testFilterOutNonTrafficBundlesForUnloading."""

    def load(thousands: float) -> dict[str, float]:
        return {"msgRateIn": thousands * 1000, "msgThroughputIn": thousands * MIB}

    busy = {f"broker-1-bundle-{index}": load(amount) for index, amount in enumerate([60, 20, 20, 0, 0])}
    brokers = {"broker0": load(10) | {"bundles": ["broker-0-bundle-0"]}, "broker1": load(100) | {"bundles": list(busy)}}
    limits = {"maxUnloadBundleNumPerShedding": 5, "maxUnloadPercentage": 0.5}
    picked = selected(
        "UniformLoadShedder", brokers, known(busy | {"broker-0-bundle-0": load(10)}), configuration=limits | settings
    )
    assert {broker: set(names) for broker, names in picked.items()} == {
        "broker1": {"broker-1-bundle-1", "broker-1-bundle-2"}
    }


def rated(cpu: float, rate: float, prefix: str = "") -> dict[str, Any]:
    names = [f"{prefix}-{index}" for index in range(11)] if prefix else []
    return {"cpu": usage(cpu)} | both_ways(rate, "msgRate") | {"bundles": names}


HIGH = {"loadBalancerAvgShedderHighThreshold": 40, "loadBalancerAvgShedderHitCountHighThreshold": 2}
LOW = {"loadBalancerAvgShedderLowThreshold": 20, "loadBalancerAvgShedderHitCountLowThreshold": 6}
MIDDLE = {"broker3": rated(50, 5000)}


@pytest.mark.parametrize(
    ("brokers", "settings", "cycles", "destinations"),
    [
        pytest.param(
            {"broker1": rated(80, 10_000, "t/n/bundle1"), "broker2": rated(30, 1000)} | MIDDLE,
            HIGH,
            2,
            {"broker1": "broker2"},
            id="testHitHighThreshold",
        ),
        pytest.param(
            {"broker1": rated(60, 10_000, "t/n/bundle1"), "broker2": rated(40, 1000)} | MIDDLE,
            LOW,
            6,
            {"broker1": "broker2"},
            id="testHitLowThreshold",
        ),
        pytest.param(
            {
                "broker1": rated(80, 10_000, "t/n/bundle1"),
                "broker2": rated(30, 1000),
                "broker3": rated(75, 10_000, "t/n/bundle3"),
                "broker4": rated(35, 1000),
            },
            HIGH,
            2,
            {"broker1": "broker2", "broker3": "broker4"},
            id="testSheddingMultiplePairs",
        ),
    ],
)
def test_avg_shedder_pairs_as_upstream(brokers, settings, cycles, destinations):
    """In the cycle that its counters allow, ten of eleven bundles go to the pair's other broker."""
    names = [name for data in brokers.values() for name in data["bundles"]]
    samples = enumerate(names)
    given = cluster(
        brokers,
        "AvgShedder",
        bundles=known({name: both_ways(450, "msgRate") | {"numSamples": number} for number, name in samples}),
        configuration=settings | {"maxUnloadPercentage": 0.5},
    )
    for _ in range(cycles - 1):
        held = answer(given)
        assert held.selected == {}
        given["state"] = state_of(held)
    shed = answer(given)
    assert {source: len(picked) for source, picked in shed.selected.items()} == dict.fromkeys(destinations, 10)
    assert {(entry.source_broker, entry.destination_broker) for entry in shed.decisions} == set(destinations.items())
