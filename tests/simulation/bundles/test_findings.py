"""What users and Pulsar's own proposals report of its balancers, seen again on simulated fleets."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.simulation.bundles.fleet import Broker, Fleet
from anabranch.simulation.bundles.outcome import BalancingOutcome
from anabranch.simulation.bundles.run import balancer, simulate
from anabranch.simulation.bundles.shapes import SHAPES

THRESHOLD = "ThresholdShedder+LeastLongTermMessageRate,loadBalancerBundleUnloadMinThroughputThreshold=1"
EVEN_OFF = ",loadBalancerDistributeBundlesEvenlyEnabled=false"


def fleet(loads: dict[str, list[tuple[float, float]]], minutes: int = 60) -> Fleet:
    """Brokers with bundles of so many messages a second of so many bytes; no noise, CPU full at 100,000."""
    all_of = [(name, *one) for name, own in loads.items() for one in own]
    rates, sizes = (np.array([one[place] for one in all_of]) for place in (1, 2))
    return Fleet(
        tuple(Broker(name, idle=0.0) for name in loads),
        tuple(f"t/n/0x{place:08x}_0x{place + 1:08x}" for place in range(len(all_of))),
        tuple(name for name, *_ in all_of),
        np.tile(rates, (minutes, 1)),
        sizes,
        np.ones(len(all_of)),
    )


def ran(what: Fleet, text: str) -> BalancingOutcome:
    profile, configuration = balancer(text)
    return simulate(what, configuration, profile)


def full(usage: float, bundles: int = 10) -> list[tuple[float, float]]:
    """Bundles that fill a broker's CPU so far, with messages of 1 KiB."""
    return [(usage * 50_000 / bundles, 1024.0)] * bundles


def test_threshold_shedder_ignores_idle_sixth_broker():
    """apache/pulsar#18215: the mean is 41.7 %, and 50 % is not ten points above it."""
    assert ran(fleet({f"b{place}": full(0.5) for place in range(5)} | {"idle": []}), THRESHOLD + EVEN_OFF).moves == []
    found = ran(fleet({f"b{place}": full(0.7) for place in range(5)} | {"idle": []}), THRESHOLD + EVEN_OFF)
    assert {destination for minute, *_, destination in found.moves if minute == 0} == {"idle"}


@pytest.mark.parametrize("shape", ["join", "death"])
def test_joining_broker_used_only_by_avg_shedder(shape):
    """apache/pulsar#12160 and #19310."""
    left = ran(SHAPES[shape](1), "ThresholdShedder+LeastLongTermMessageRate")
    assert set(left.used_after.values()) == {None}
    used = ran(SHAPES[shape](1), "AvgShedder+AvgShedder,profile=5.0")
    assert all(minutes is not None and minutes <= 5 for minutes in used.used_after.values())
    assert used.idle < left.idle


def test_least_long_term_rate_swaps_between_full_brokers():
    """PIP-364: the shedder sees bytes, the placement messages, and the broker with room has the most messages."""
    large = [(400.0, 20_000.0)] * 10
    loads = {"large-0": [*large, (200.0, 20_000.0)], "large-1": large, "small": full(0.3)}
    settings = ",loadBalancerSheddingGracePeriodMinutes=5,loadBalancerBrokerThresholdShedderPercentage=8" + EVEN_OFF
    there_and_back = ran(fleet(loads, 180), THRESHOLD + settings)
    assert there_and_back.ping_pongs > 0
    assert "small" not in {destination for *_, destination in there_and_back.moves}
    by_usage = THRESHOLD.replace("LeastLongTermMessageRate", "LeastResourceUsageWithWeight")
    better = ran(fleet(loads, 180), by_usage + settings)
    assert better.moves[0][3] == "small"
    assert better.ping_pongs < there_and_back.ping_pongs


def test_old_uniform_shedder_picks_wrong_broker():
    """apache/pulsar#21016: whoever has more bytes takes over the slot, with its own lower rate."""
    loads = {
        "most-messages": [(4000.0, 100.0)] * 10,
        "most-bytes": [(1500.0, 4000.0)] * 10,
        "least": [(100.0, 100.0)] * 10,
    }
    placed = "+LeastLongTermMessageRate" + EVEN_OFF
    assert ran(fleet(loads, 3), "UniformLoadShedder" + placed).moves[0][2] == "most-messages"
    assert ran(fleet(loads, 3), "UniformLoadShedder-21016" + placed).moves[0][2] == "most-bytes"


@pytest.mark.parametrize(("low", "high", "cycle"), [(0.2, 0.5, 5), (0.2, 0.7, 2)])
def test_avg_shedder_waits_by_distance(low, high, cycle):
    """PIP-364, with its low count set to five."""
    text = "AvgShedder+AvgShedder,loadBalancerAvgShedderHitCountLowThreshold=5"
    found = ran(fleet({"low": full(low), "high": full(high)}, 12), text)
    assert found.moves[0] == (cycle - 1, found.moves[0][1], "high", "low")
    assert {minute for minute, *_ in found.moves} & set(range(cycle - 1)) == set()


def test_even_spread_keeps_smallest_broker_full():
    """apache/pulsar#21722: the filter leaves only the owner; since #20822 it is a hold, not an unload."""
    loads = {"few": full(0.8, 4), "many-0": full(0.2), "many-1": full(0.2)}
    assert ran(fleet(loads), THRESHOLD + ",loadBalancerDistributeBundlesEvenlyEnabled=true").moves == []
    assert ran(fleet(loads), THRESHOLD + EVEN_OFF).moves[0][2] == "few"


def test_twelve_percent_broker_keeps_load_beside_idle():
    """apache/pulsar#18215: 12, 2, 1 and 1 % are within ten points of their mean; the lower boundary is as far off."""
    loads = {"busy": full(0.12), "b": full(0.02), "c": full(0.01), "d": full(0.01)}
    assert ran(fleet(loads), THRESHOLD + EVEN_OFF).moves == []
    assert ran(fleet(loads), THRESHOLD + ",lowerBoundarySheddingEnabled=true" + EVEN_OFF).moves == []


def test_lower_boundary_fills_idle_broker():
    """apache/pulsar#19310, its origin: five at half and an idle one."""
    loads = {f"b{place}": full(0.5) for place in range(5)} | {"idle": []}
    found = ran(fleet(loads), THRESHOLD + ",lowerBoundarySheddingEnabled=true" + EVEN_OFF)
    assert {destination for minute, *_, destination in found.moves if minute == found.moves[0][0]} == {"idle"}
    left = ran(fleet(loads), THRESHOLD + EVEN_OFF)
    assert left.idle == 60, "every minute of the hour"
    assert found.idle < 20


def test_before_20822_bundle_returns_to_its_owner():
    """apache/pulsar#21722: the evenly-distribute filter leaves only the owner; once in a grace period each."""
    loads = {"few": full(0.8, 4), "many-0": full(0.2), "many-1": full(0.2)}
    evenly = ",loadBalancerDistributeBundlesEvenlyEnabled=true,loadBalancerSheddingGracePeriodMinutes=5,fix20822="
    useless = ran(fleet(loads), THRESHOLD + evenly + "false")
    assert {(source, destination) for _, _, source, destination in useless.moves} == {("few", "few")}
    assert len(useless.moves) > 8, "each of four bundles several times in an hour"
    assert useless.unserved > 0
    assert ran(fleet(loads), THRESHOLD + evenly + "true").moves == []


def test_uniform_shedder_moves_all_quiet_traffic():
    """apache/pulsar#21905: a bundle may be a thousand messages a second larger than what is needed."""
    text = "UniformLoadShedder+LeastLongTermMessageRate,minUnloadMessage=0,minUnloadMessageThroughput=0" + EVEN_OFF
    quiet = ran(fleet({"first": [(30.0, 100.0)] * 10, "second": []}, 2), text)
    assert [move[2:] for move in quiet.moves if move[0] == 0] == [("first", "second")] * 10
    busy = ran(fleet({"first": [(3000.0, 100.0)] * 10, "second": []}, 2), text)
    assert 0 < len([move for move in busy.moves if move[0] == 0]) < 10


def test_before_13136_new_leader_blind_for_15_minutes():
    """apache/pulsar#13119: its averages start at zero and take a tenth of what is missing each minute."""
    loads = {"hot": full(0.8), "cold-0": full(0.2), "cold-1": full(0.2)}
    at_once = ran(fleet(loads), THRESHOLD + ",loadBalancerBrokerThresholdShedderPercentage=30,fix13136=true" + EVEN_OFF)
    blind = ran(fleet(loads), THRESHOLD + ",loadBalancerBrokerThresholdShedderPercentage=30,fix13136=false" + EVEN_OFF)
    assert at_once.moves[0][0] == 0
    assert blind.moves[0][0] == 13, "0.4 (1 - 0.9^n) reaches 0.3 in the 14th cycle"
