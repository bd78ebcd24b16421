"""Cases of Pulsar's own tests of placement and of load reports: inputs and results under its names."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.bundles.configuration import Configuration
from decisions.bundles.reports import LoadOfReport, is_reported
from decisions.bundles.usage import max_usage, weighted_max, weighted_max_within_limit
from schemas.bundles import LocalBrokerData
from tests.decisions.bundles.clusters import NOW, answer, cluster, state_of

ALL = "0x00000000_0xffffffff"


def used(percent: float, *, is_empty: bool = False) -> dict[str, Any]:
    """A broker as `initBrokerData` makes it: all resources at one usage, with traffic and a bundle."""
    resources = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
    traffic = {"msgRateIn": 100.0, "msgRateOut": 100.0, "bundles": [] if is_empty else [f"t/n/{ALL}"]}
    return {name: {"usage": percent, "limit": 100} for name in resources} | traffic


def choose(strategy: str, brokers: dict[str, Any], candidates: list[str], **more: Any) -> Any:
    given = cluster(brokers, operation="selectBroker", assign=[f"t/new/{ALL}"], candidates=candidates, **more)
    given["configuration"]["loadBalancerLoadPlacementStrategy"] = strategy
    return answer(given)


def chosen(answered: Any) -> str | None:
    return answered.decisions[0].destination_broker if answered.decisions else None


@pytest.mark.parametrize(
    ("rates", "cpu_of_second", "expected"),
    [((100, 200, 300), 0, "1"), ((400, 200, 300), 0, "2"), ((400, 200, 300), 90, "3")],
)
def test_least_message_rate_chooses_as_upstream(rates, cpu_of_second, expected):
    """testLeastLongTermMessageRate."""
    brokers = {"1": {}, "2": {"cpu": {"usage": cpu_of_second, "limit": 100}}, "3": {}}
    averages = {str(number): {"longTermMsgRateIn": rate} for number, rate in enumerate(rates, 1)}
    assert chosen(choose("LeastLongTermMessageRate", brokers, list("123"), brokerTimeAverage=averages)) == expected


WEIGHTS = {
    "loadBalancerCPUResourceWeight": 1.0,
    "loadBalancerMemoryResourceWeight": 0.1,
    "loadBalancerDirectMemoryResourceWeight": 0.1,
    "loadBalancerBandwidthInResourceWeight": 1.0,
    "loadBalancerBandwidthOutResourceWeight": 1.0,
    "loadBalancerHistoryResourcePercentage": 0.5,
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": 5,
}
STEPS = [((10, 30, 60), "1"), ((20, 30, 50), "1"), ((30, 30, 40), "1"), ((30, 30, 40), "1"), ((35, 20, 45), "2")]


def test_least_resource_usage_chooses_as_upstream():
    """testLeastResourceUsageWithWeight: six steps, in the last of which a broker has been started again."""
    brokers = {str(number): used(usage) for number, usage in enumerate((10, 30, 60, 5), 1)}
    first = choose("LeastResourceUsageWithWeight", brokers, list("1234"), configuration=WEIGHTS)
    state = state_of(first)
    for usages, expected in [*STEPS, ((35, 20, 0), "3")]:
        brokers |= {str(number): used(usage, is_empty=not usage) for number, usage in enumerate(usages, 1)}
        answered = choose("LeastResourceUsageWithWeight", brokers, list("123"), configuration=WEIGHTS, state=state)
        assert (usages, chosen(answered)) == (usages, expected)
        state = state_of(answered)


def test_least_resource_usage_without_history_as_upstream():
    """testLeastResourceUsageWithWeightWithArithmeticException."""
    brokers = {str(number): used(usage) for number, usage in enumerate((10, 30, 60, 5), 1)}
    state = {"brokerAvgResourceUsageWithWeight": {"1": 0.1, "2": 0.3, "4": 0.05}}
    answered = choose("LeastResourceUsageWithWeight", brokers, list("123"), configuration=WEIGHTS, state=state)
    assert chosen(answered) == "1"


@pytest.mark.parametrize(
    ("averages", "options", "expected"),
    [
        *((dict(enumerate((usage / 100 for usage in usages), 1)), {1, 2, 3}, name) for usages, name in STEPS[:2]),
        # testArithmeticException: a broker without an average counts with its usage of now, as after a first report.
        ({1: 0.1, 2: 0.3, 3: 0.6, 4: 0.05}, {1, 2, 3}, "1"),
        # testNoLoadDataBrokers.
        ({1: 0.5, 2: 1.0}, {1, 2, 5}, "1"),
        ({1: 1.0, 2: 1.0}, {1, 2, 5}, {"1", "2", "5"}),
        ({}, {1, 2, 5}, {"1", "2", "5"}),
    ],
)
def test_extensible_placement_chooses_as_upstream(averages, options, expected):
    """LeastResourceUsageWithWeightTest of the extensible manager."""
    given = {
        "now": NOW,
        "loadManager": "extensible",
        "operation": "assign",
        "assign": [f"t/new/{ALL}"],
        "configuration": WEIGHTS,
        "brokerLoadData": {str(name): {"weightedMaxEMA": usage, "updatedAt": NOW} for name, usage in averages.items()},
        "availableBrokers": {str(name): {} for name in options},
    }
    (tie,) = answer(given).ties
    assert set(tie.brokers) == ({expected} if isinstance(expected, str) else expected)


def test_round_robin_goes_on_as_upstream():
    """testRoundRobinBrokerSelector."""
    steps = [("123", str(number % 3 + 1)) for number in range(10)]
    steps += [("231", str(number % 3 + 1)) for number in range(10, 20)]
    steps += [("124", expected) for expected in "412412"] + [("24", expected) for expected in "2424"]
    state: Any = {}
    for options, expected in steps:
        answered = choose("RoundRobinBrokerSelector", {key: {} for key in options}, list(options), state=state)
        assert chosen(answered) == expected
        state = state_of(answered)
    assert chosen(choose("RoundRobinBrokerSelector", {}, [])) is None
    most = 2**31 - 1
    last = choose("RoundRobinBrokerSelector", {key: {} for key in "123"}, list("123"), state={"roundRobinCount": most})
    assert (chosen(last), last.state.round_robin_count) == (str(most % 3 + 1), 0)


@pytest.mark.parametrize(
    ("last", "current", "expected"),
    [
        ({"rate": 100.0}, {"rate": 104.0}, False),
        ({"rate": 100.0}, {"rate": 105.1}, True),
        ({"rate": 100.0}, {"rate": 94.0}, True),
        ({"rate": 100.0}, {"rate": 95.1}, False),
        ({"rate": 0.0}, {"rate": 1e-8}, True),
        ({"rate": 1e-8}, {"rate": 0.0}, True),
        ({"rate": 0.0}, {"rate": 0.0}, False),
        ({"usage": 0.1}, {"usage": 0.106}, False),
        ({"usage": 0.1}, {"usage": 0.206}, True),
        ({"throughput": 100.0}, {"throughput": 106.0}, True),
        ({"bundles": 100}, {"bundles": 106}, True),
        ({"bundles": 100}, {"bundles": 100}, False),
    ],
)
def test_report_is_written_as_upstream(last, current, expected):
    """testNeedBrokerDataUpdate, with its threshold of five percent."""
    empty = LoadOfReport(at=NOW, usage=0.0, rate=0.0, throughput=0.0, bundles=0)
    assert is_reported(empty._replace(**last), empty._replace(**current), threshold=5) is expected


def test_highest_usage_is_upstreams():
    """LocalBrokerDataTest.testMaxResourceUsage; weights cover memory before apache/pulsar#19559."""
    usages = {
        "cpu": (1, 100),
        "memory": (800, 200),
        "directMemory": (2, 100),
        "bandwidthIn": (3, 100),
        "bandwidthOut": (4, 100),
    }
    data = LocalBrokerData.model_validate(
        {name: {"usage": usage, "limit": limit} for name, (usage, limit) in usages.items()}
    )
    halves = {name: 0.5 for name in WEIGHTS if name.endswith("Weight")}
    before = Configuration(halves | {"fix19559": False})
    assert max_usage(data, Configuration(halves)) == pytest.approx(0.04)
    assert weighted_max(data, before) == pytest.approx(2.0)
    assert weighted_max_within_limit(data, before) == pytest.approx(0.02)
