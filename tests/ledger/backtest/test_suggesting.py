"""The search among policies: what beats what, and that it is the same every time."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli import cli
from engine.autoscale.topics import ConfiguredPolicy
from ledger.backtest.suggesting import Suggestion, Tried, beats, frontier
from tests.ledger.backtest.really import Seeded, really_run

NONE = ConfiguredPolicy("default", None)


def tried(hours, over, reversals=0, name="p"):
    return Tried(name, NONE, 0, 0, reversals, hours, over, 0.0)


policies = st.lists(st.builds(tried, st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=20)


@given(policies)
def test_the_frontier_is_what_nothing_beats_and_beats_or_equals_all_else(some):
    found = frontier(some)
    assert not any(beats(one, other) for one in some for other in found)
    points = {(one.segment_hours, one.minutes_over) for one in found}
    for one in some:
        assert (one.segment_hours, one.minutes_over) in points or any(beats(other, one) for other in found)
    assert len(points) == len(found)


@given(policies, st.integers(0, 3))
def test_what_is_suggested_is_allowed_and_beats_todays(some, most):
    found = Suggestion(some[0], some, most)
    best = found.best
    if best is not None:
        assert best.reversals <= most
        assert some[0].reversals > most or beats(best, some[0])
    elif some[0].reversals <= most:
        assert not any(beats(one, some[0]) for one in some if one.reversals <= most)


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Of a policy that keeps many segments for long, without need."""
    folder = tmp_path_factory.mktemp("lake")
    wasteful = ConfiguredPolicy("default", json.dumps({"minSegments": 8, "splitMsgRateInThreshold": 40_000.0}))
    return really_run(Seeded(2, 3), wasteful, 1, folder / "lake")


def test_the_command_suggests_what_is_better_the_same_every_time_and_applies_nothing(lake, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("minSegments = 8\nsplitMsgRateInThreshold = 40000\n")
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n[policy]\ncluster = "{policy}"\n')
    given = ["-c", str(tmp_path / "s.toml"), "suggest", "--budget", "16", "--max-reversals", "50"]
    runs = [CliRunner().invoke(cli, [*given, "--output", "json"]) for _ in range(2)]
    assert runs[0].exit_code == 0, runs[0].output
    assert runs[0].output == runs[1].output
    told = json.loads(runs[0].output)
    best, today = told["suggested"], told["today"]
    assert best["segmentHours"] < today["segmentHours"]
    assert best["minutesOverThreshold"] <= today["minutesOverThreshold"]
    assert "minSegments" in best["set"]
    assert "-minSegments = 8" in told["diff"].splitlines()
    assert policy.read_text() == "minSegments = 8\nsplitMsgRateInThreshold = 40000\n"
    file = tmp_path / "out.html"
    page = CliRunner().invoke(cli, [*given, "--output", "html", "--file", str(file)])
    assert page.exit_code == 0
    assert "Plotly.newPlot" in file.read_text()
    text = CliRunner().invoke(cli, given).output
    assert f"* {best['policy']}" in text
    assert "nothing was applied" in text
