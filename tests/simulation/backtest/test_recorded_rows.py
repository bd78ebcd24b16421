"""Each kind of row on record has its effect on a backtest: outcomes, holds, policies, and what is older than a part."""

from __future__ import annotations

import json

import pytest

from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.record import recorded_policies
from anabranch.simulation.backtest.running import RAN, RECORD, backtest
from engine.autoscale.topics import ConfiguredPolicy
from tests.local.lake import (
    POLICY,
    at,
    batch,
    consumer_event,
    decision,
    hold,
    layout_event,
    layout_json,
    load,
    millis,
    outcome,
    policy_event,
    write,
)

DEFAULT = ConfiguredPolicy("default", None)
HOUR = 3_600


def recorded(tmp_path, *rows, hours=1, since=None, until=None, down=range(0)):
    """The history of a lake with these rows, of a topic of one segment, and a batch a minute unless it is down."""
    lake = str(tmp_path / "lake")
    batches = (batch(second, second) for second in range(0, hours * HOUR + 1, 60) if second not in down)
    write(lake, policy_event(0), layout_event(layout_json((0, 0, 65535)), 0), *batches, *rows)
    instants = (None if second is None else at(second) for second in (since, until))
    return open_history(lake, tmp_path / "rows", *instants, None, DEFAULT)


def test_decision_that_was_not_applied_explains_an_extra_action(tmp_path):
    rows = load(0, 15_000.0, 1), decision(60), outcome("d1", "intent", 61), outcome("d1", "superseded", 62)
    assert "was decided, and then superseded" in backtest(recorded(tmp_path, *rows), {}).agreement.extra


def test_time_held_for_a_missing_load_is_guessed_until_the_next_hold(tmp_path):
    gates = (
        (60, "merge-floor"),
        (600, "load-stale"),
        (1200, "merge-floor"),
        (2400, "load-missing"),
        (2700, "split-load"),
    )
    holds = (hold(second, gate, seq) for seq, (second, gate) in enumerate(gates, 1))
    found = backtest(recorded(tmp_path, load(0, 100.0, 1), *holds), {})
    assert found.confidence(RAN).by_kind["gap"] == (600 + 300) * 1000


def test_time_before_the_first_load_is_guessed(tmp_path):
    found = backtest(recorded(tmp_path, load(0, 100.0, 1_800)), {})
    assert found.confidence(RAN).by_kind["gap"] == 1_800 * 1000


def test_policy_cannot_act_while_the_job_was_down(tmp_path):
    rows = load(0, 5_000.0, 1), load(0, 15_000.0, 1_210), batch(1_210, 1_210)
    found = backtest(
        recorded(tmp_path, *rows, down=range(1_211, 2_400)), {"pip-483": ConfiguredPolicy("pip-483", None)}
    )
    assert found.totals("pip-483")["splits"] > 0
    assert found.totals("pip-483")["minutesOverThreshold"] == pytest.approx((2_400 - 1_210) / 60, abs=0.5)


def test_overrides_run_until_they_are_removed(tmp_path):
    lake = str(tmp_path)
    name = {"scope": "namespace", "profile": None}
    write(
        lake,
        policy_event(0),
        policy_event(10, **name, name="acme/shop", policy={"minSegments": 2}),
        policy_event(20, **name, name="acme/cart", policy={"minSegments": 3}),
        policy_event(30, **name, name="acme/shop", policy=None),
        policy_event(600, profile=None, policy={"maxSegments": 3}),
        policy_event(1200, profile=None, policy=None),
    )
    ran, other, namespaces = recorded_policies(lake, millis(0), millis(HOUR), DEFAULT)
    assert json.loads(ran.override) == POLICY
    assert [(begin - millis(0), end - millis(0)) for begin, end in other] == [(600_100, 1_200_100)]
    assert {name: json.loads(override) for name, override in namespaces.items()} == {"acme/cart": {"minSegments": 3}}
    longest, _, _ = recorded_policies(lake, millis(500), millis(1200), DEFAULT)
    assert json.loads(longest.override) == {"maxSegments": 3}


@pytest.mark.parametrize(("newer", "minutes_over"), [((), 60), ((load(0, 100.0, 2),), 0)])
def test_part_begins_with_what_was_so_long_before(tmp_path, newer, minutes_over):
    """The load and the consumers are older than the time that is simulated before a part."""
    older = load(0, 15_000.0, 1), consumer_event("billing", 5, 100), *newer
    history = recorded(tmp_path, *older, load(0, 15_000.0, 4 * HOUR + 60), hours=5, since=3 * HOUR, until=4 * HOUR)
    assert (history.began_at, history.ends_at) == (millis(3 * HOUR), millis(4 * HOUR))
    found = backtest(history, {})
    assert found.topic_hours == 1
    assert found.totals(RECORD)["minutesOverThreshold"] == minutes_over
    assert found.totals(RECORD)["consumerMinutesWaiting"] == 4 * 60
    assert (found.totals(RAN)["segmentHours"] > 1) or not minutes_over
    assert found.confidence(RAN).by_kind["gap"] == 0
