"""The real executor takes the steps of the model, in every order that the scenarios have, and comes to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.kernel.family import Act
from tests.executor.model import stage
from tests.executor.model.rules import Rules
from tests.executor.model.scenarios import scenarios


def test_the_real_executor_follows_the_model_through_every_single_fault(tmp_path: Path):
    chosen = scenarios(Rules(faults=1))
    assert len(chosen) > 80
    played = stage.Stage(tmp_path)
    for scenario in chosen:
        played.play(scenario)


def test_an_executor_that_takes_other_steps_than_the_model_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage, "judge", lambda *_: Act())
    undisturbed = scenarios(Rules(faults=0))[0]
    with pytest.raises(AssertionError, match="the executor wants to record the retry, not to record the end: applied"):
        stage.Stage(tmp_path).play(undisturbed)
