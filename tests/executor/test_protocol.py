"""The real executor takes the steps of the model, in every order that the scenarios have, and comes to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.executor.kernel.family import StillNeeded
from anabranch.executor.kernel.loop import Executor
from tests.executor.model import stage
from tests.executor.model.rules import Rules
from tests.executor.model.scenarios import scenarios
from tests.executor.model.state import Step

ONE, SPLITS, MOVES = Rules(faults=1), Rules(faults=1, siblings=2), Rules(faults=1, siblings=2, bundles=True)


@pytest.mark.parametrize(
    ("rules", "least", "every"),
    [
        pytest.param(ONE, 80, 4, id="one decision"),
        pytest.param(SPLITS, 150, 20, id="two splits"),
        pytest.param(MOVES, 140, 20, id="two moves"),
        pytest.param(ONE, 80, 1, id="one decision, all", marks=pytest.mark.soak),
        pytest.param(SPLITS, 150, 1, id="two splits, all", marks=pytest.mark.soak),
        pytest.param(MOVES, 140, 1, id="two moves, all", marks=pytest.mark.soak),
    ],
)
def test_real_executor_follows_model_through_faults(tmp_path: Path, rules: Rules, least: int, every: int):
    chosen = scenarios(rules)
    assert len(chosen) > least
    played = stage.Stage(tmp_path)
    for scenario in chosen[every // 2 :: every]:
        played.play(scenario, rules)


def test_deviating_executor_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stage.AutoscaleActor, "judge", lambda *_: StillNeeded())
    undisturbed = scenarios(Rules(faults=0))[0]
    with pytest.raises(AssertionError, match="wants to record the retry 0, not to record the end 0: applied"):
        stage.Stage(tmp_path).play(undisturbed, Rules(faults=0))


def test_unrestored_outcome_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Executor, "_unheard", lambda executor: set())
    rules = Rules(faults=1, siblings=2)
    killed = next(one for one in scenarios(rules) if _is_killed_before_it_announces_the_first(one[0]))
    with pytest.raises(AssertionError, match="a start announces every end"):
        stage.Stage(tmp_path).play(killed, rules)


def _is_killed_before_it_announces_the_first(trace: tuple[Step, ...]) -> bool:
    whats = [(step.what, step.decision) for step in trace]
    return ("record the end", 0) in whats and whats[whats.index(("record the end", 0)) + 1][0] == "kill -9"
