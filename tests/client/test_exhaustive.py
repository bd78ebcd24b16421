"""All orders of seal, resend, drain and assign of small topics: nothing lost, order per key, nobody waits for ever."""

from __future__ import annotations

import pytest

from anabranch.controller.sessions import assignment
from anabranch_client.checkpoints import Frontier
from anabranch_client.lanes import Lanes
from tests.client.exhaustive import Scenario, explore
from tests.examples import only_first

SCENARIOS = {
    "split": (Scenario.of(1, "lllh", (0,)), 3_000),
    "split, message too large": (Scenario.of(1, "lllh", (0,), oversized=1), 3_000),
    "merge": (Scenario.of(2, "lhl", (0, 1)), 5_000),
    "split of a child": (Scenario.of(1, "lll", (0,), (1,)), 9_000),
    "split and merge": (Scenario.of(1, "lhl", (0,), (1, 2)), 15_000),
}


@pytest.mark.parametrize("name", only_first(4, SCENARIOS))
def test_every_order_of_steps_keeps_messages(name: str) -> None:
    scenario, fewest = SCENARIOS[name]
    assert explore(scenario) > fewest


def test_children_assigned_early_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "assignable", lambda layout, drained: tuple(layout.segments.values()))
    with pytest.raises(AssertionError, match=r"after .*read"):
        explore(Scenario.of(1, "ll", (0,)))


def test_messages_that_overtake_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lanes, "_lane_of", lambda lanes, hash: lanes._active[0])
    with pytest.raises(AssertionError, match=r"after .*answer"):
        explore(Scenario.of(1, "ll", (0,)))


def test_lost_resends_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lanes, "resubmit", lambda lanes, record: None)
    with pytest.raises(AssertionError, match=r"after .*seal"):
        explore(Scenario.of(1, "ll", (0,)))


def test_checkpoint_read_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Frontier, "_is_ready", lambda frontier, id, read: True)
    with pytest.raises(AssertionError, match=r"after .*checkpoint"):
        explore(Scenario.of(1, "ll", (0,)))
