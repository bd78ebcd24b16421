"""Demand and decisions together: the demonstration shows every kind of action in time, and goes on doing so."""

from __future__ import annotations

import pytest

from anabranch.local.demand import demands
from tests.local.closed_loop import ClosedLoop
from tests.local.demonstration import HOME, NOW, local_settings

EVERY_KIND = {"split:consumer-count", "split:load", "merge"}
SPARK_STARTS_IN = 35
"""Seconds until the job decides anything on a slow machine."""
SEEN_WITHIN = 85
"""Seconds that are left of two minutes."""
FOR_EVER = 86_400.0 * 365


def loop(start: float = NOW, job_delay: int = 0, **traffic: object) -> ClosedLoop:
    settings = local_settings(HOME)
    changed = settings.model_copy(update={"traffic": settings.traffic.model_copy(update=traffic)})
    return ClosedLoop(changed, start, job_delay)


@pytest.mark.parametrize("start", [NOW + 18 * step for step in range(5)])
@pytest.mark.parametrize("seed", [7, 1, 2])
def test_demonstration_shows_all_actions_in_2_minutes(seed, start):
    """Holds for any start of the demand."""
    actions = loop(start, SPARK_STARTS_IN, seed=seed).run(115).actions
    assert {action.kind for action in actions} == EVERY_KIND


def test_long_demonstration_keeps_showing_all_actions():
    actions = loop().run(900).actions
    for window in range(60, 900 - SEEN_WITHIN, 30):
        seen = {action.kind for action in actions if window <= action.at < window + SEEN_WITHIN}
        assert seen == EVERY_KIND, f"from second {window}"


def test_traffic_accepted_and_consumers_decide_at_once():
    run = loop().run(120)
    assert run.dead_letters == []
    assert any(action.row["trigger"] == "consumer" for action in run.actions)


def test_constant_demand_settles_below_thresholds():
    run = loop(wave_seconds=FOR_EVER, burst_seconds=FOR_EVER, consumer_seconds=FOR_EVER, seed=3).run(240)
    assert any(action.kind == "split:load" for action in run.actions)
    assert [action for action in run.actions if action.at > 150] == []
    limits = run.policy_thresholds
    for demand in demands(run.settings.traffic):
        active = run.layouts[demand.topic].active
        rates = demand.rates(NOW + 240, [segment.start for segment in active], [segment.end for segment in active])
        assert (rates <= limits).all()
