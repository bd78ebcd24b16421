"""Demand and decisions together: what the demonstration shows, and that waves of load lead to every kind of action."""

from __future__ import annotations

import itertools

import pytest

from anabranch.local.demand import demands
from schemas.settings.root import load_settings
from tests.examples import only_first
from tests.local.closed_loop import Action, ClosedLoop
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


@pytest.mark.parametrize(("seed", "step"), only_first(2, [(7, 0), (1, 1), (7, 3), (2, 3), (7, 1), (7, 2), (7, 4)]))
def test_demonstration_shows_all_actions_in_2_minutes(seed, step):
    """Holds for any start of the demand."""
    actions = loop(NOW + 18 * step, SPARK_STARTS_IN, seed=seed).run(115).actions
    assert {action.kind for action in actions} == EVERY_KIND


@pytest.mark.parametrize("seconds", only_first(1, [300, 1_800]))
def test_long_demonstration_keeps_showing_all_actions(seconds):
    actions = loop().run(seconds).actions
    for window in range(60, seconds - SEEN_WITHIN, 30):
        seen = {action.kind for action in actions if window <= action.at < window + SEEN_WITHIN}
        assert seen == EVERY_KIND, f"from second {window}"


def story(job_delay: int, applied_after: int = 2) -> ClosedLoop:
    files = [HOME / "conf" / name for name in ("local.toml", "demonstration.toml", "story.toml")]
    return ClosedLoop(load_settings(files, HOME, {}), NOW, job_delay, applied_after)


def undone_in(actions: list[Action]) -> list[tuple[Action, Action]]:
    """Return the pairs of an action and its opposite on a segment that it had made."""
    return [
        (first, then)
        for first, then in itertools.combinations(actions, 2)
        if first.topic == then.topic
        and first.kind.partition(":")[0] != then.kind.partition(":")[0]
        and first.made & then.segments
    ]


@pytest.mark.parametrize(("job_delay", "applied_after"), only_first(1, [(SPARK_STARTS_IN, 2), (0, 1), (75, 8)]))
def test_story_shows_its_themes_and_undoes_nothing(job_delay, applied_after):
    run = story(job_delay, applied_after).run(300)
    kinds = {}
    for action in run.actions:
        kinds.setdefault(action.topic.rpartition("/")[2], set()).add(action.kind)
    assert kinds == {
        "orders": {"split:load"},
        "payments": {"split:load"},
        "clicks": {"split:consumer-count"},
        "shipments": {"split:load"},
        "prices": {"merge"},
    }
    assert undone_in(run.actions) == []
    assert {row["subject"] for row in run.holds if row["gate"] == "one-hot-key"} == {"topic://acme/shop/shipments"}
    assert run.dead_letters == []


def test_story_decides_as_soon_as_the_job_runs():
    assert min(action.at for action in story(SPARK_STARTS_IN).run(60).actions) == SPARK_STARTS_IN


def test_repeated_story_finds_its_segments_ready():
    run = story(SPARK_STARTS_IN).run(600)
    assert [action for action in run.actions if action.at > 300] == []
    assert undone_in(run.actions) == []


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
