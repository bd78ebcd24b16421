"""The loop itself: the same again, nothing lost, counts that are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.simulation.bundles.fleet import Broker, Fleet
from anabranch.simulation.bundles.outcome import BalancingOutcome
from anabranch.simulation.bundles.reports import is_due
from anabranch.simulation.bundles.run import DEAD_SECONDS, SECONDS_A_CONNECTION, UNLOAD_SECONDS, balancer, simulate
from anabranch.simulation.bundles.shapes import SHAPES
from decisions.bundles.configuration import ConfigurationError
from schemas.bundles import LocalBrokerData
from tests.examples import examples

AVG = {"loadBalancerLoadSheddingStrategy": "AvgShedder", "loadBalancerLoadPlacementStrategy": "AvgShedder"}


@examples(2)
@given(st.sampled_from(sorted(SHAPES)), st.integers(0, 1000))
def test_seed_is_repeatable_and_moves_chain(shape, seed):
    """Every move starts where the last one ended."""
    fleet = SHAPES[shape](seed)
    found = simulate(fleet, AVG)
    assert simulate(SHAPES[shape](seed), AVG).summary() == found.summary()
    deaths = {one.name: one.dies for one in fleet.brokers if one.dies is not None}
    at = dict(zip(fleet.bundles, fleet.owners, strict=True))
    for minute, bundle, source, destination in found.moves:
        assert source != destination
        assert at[bundle] == source or deaths.get(at[bundle], minute + 1) <= minute
        assert deaths.get(destination, minute + 1) > minute
        at[bundle] = destination


def test_unplaceable_bundles_unserved_until_report():
    here, later = Broker("here", dies=1), Broker("later", joins=1)
    fleet = Fleet((here, later), ("t/n/0_1", "t/n/1_2"), ("here", "here"), np.ones((3, 2)), np.ones(2), np.ones(2))
    found = simulate(fleet, AVG)
    reconnects = UNLOAD_SECONDS + 10 * SECONDS_A_CONNECTION
    assert found.unserved == pytest.approx(2 * (60 + DEAD_SECONDS + reconnects))
    assert found.used_after == {"later": 0}


def test_return_within_30_minutes_is_ping_pong():
    moves = [(0, "x", "a", "b"), (30, "x", "b", "a"), (61, "x", "a", "b"), (62, "x", "b", "c"), (63, "y", "a", "b")]
    assert BalancingOutcome(70, moves=moves).ping_pongs == 1


def report(at: int, cpu: float, rate: float = 100.0) -> LocalBrokerData:
    stats = {"t/n/0x00000000_0x00000001": {"msgRateIn": rate}}
    given = {"lastUpdate": at, "cpu": {"usage": cpu, "limit": 100.0}, "lastStats": stats}
    return LocalBrokerData.model_validate(given)


@pytest.mark.parametrize(
    ("last", "new", "due"),
    [
        (None, report(0, 0), True),
        (report(0, 5), report(60_000, 14.9), False),
        (report(0, 5), report(60_000, 15.1), True),
        (report(0, 5, 100), report(60_000, 5, 110), False),
        (report(0, 5, 100), report(60_000, 5, 110.1), True),
        (report(0, 5), report(900_000, 5), False),
        (report(0, 5), report(900_001, 5), True),
    ],
)
def test_report_written_on_change_or_age(last, new, due):
    """Triggers: points of usage, percent of the other values, and age."""
    assert is_due(last, new) is due


def test_bad_settings_and_strategies_refused():
    assert balancer("AvgShedder+AvgShedder,profile=5.0") == ("5.0", AVG)
    with pytest.raises(ValueError, match="NAME=VALUE"):
        balancer("AvgShedder,fast")
    with pytest.raises(ValueError, match="not simulated"):
        simulate(SHAPES["flat"](1), {"loadBalancerLoadSheddingStrategy": "DeviationShedder"})
    with pytest.raises(ConfigurationError, match="is none of"):
        simulate(SHAPES["flat"](1), {"loadBalancerLoadSheddingStrategy": "Nonsense"})
