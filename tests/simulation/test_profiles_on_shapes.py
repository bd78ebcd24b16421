"""Profiles on shapes of demand: the table, and the loop of one topic against the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.topics import table as shape_table
from anabranch.simulation.topics.demands import SHAPES, ShapeDemand
from anabranch.simulation.topics.run import simulate
from decisions.autoscale.policy import PROFILES
from engine.autoscale.topics import ConfiguredPolicy
from tests.harness.reference_loop import alone
from tests.simulation.test_simulate_kernel import NOW

DEFAULT = ConfiguredPolicy("default", None)


def test_shape_table_has_both_profiles(monkeypatch):
    """The default profile reverses a tenth of what the other does."""
    few = ("many consumers on a cold topic", "one hot key", "a burst of 20 minutes")
    monkeypatch.setattr(shape_table, "SHAPES", {name: SHAPES[name] for name in few})
    rows = list(shape_table.table([1], 1))
    assert [(row.shape, row.profile) for row in rows] == [(name, one) for name in few for one in ("pip-483", "default")]
    undone = {one: sum(row.worst[2] for row in rows if row.profile == one) for one in ("pip-483", "default")}
    assert undone["default"] <= undone["pip-483"] / 10
    text = shape_table.as_text(rows).splitlines()
    assert len(text) == 2 + len(rows)
    assert text[2].startswith("| many consumers on a cold topic | pip-483 |")


def test_single_topic_matches_kernel():
    """But for when an action ends: two seconds after it was decided on, or with the next sample."""
    demand = SHAPES["a burst of 20 minutes"](np.random.default_rng(1))
    came = alone(demand, PROFILES["default"])
    source = ShapeDemand("a burst of 20 minutes", [1], NOW)
    many = simulate(source, {"default": DEFAULT})["default"]
    assert (came.splits, came.merges) == (many.splits[0], many.merges[0]) == (7, 7)
    assert came.segment_ms == pytest.approx(many.segment_ms[0], rel=0.02)
    assert came.over_ms == pytest.approx(many.over_ms[0], abs=40_000)


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_is_the_same_to_the_kernel(shape):
    demand, source = SHAPES[shape](np.random.default_rng(3)), ShapeDemand(shape, [3], NOW)
    (window,) = source.windows(range(1))
    assert window.timelines[0].profiles[:, :, 0].tobytes() == demand.rates.tobytes()
    sessions, changes = 0, {change.at: change.sessions for change in window.timelines[0].consumers}
    for step, count in enumerate(demand.consumers.tolist()):
        sessions = changes.get(NOW + step * 10_000, sessions)
        assert sessions == count


def test_simulate_needs_policy_but_for_shapes(tmp_path):
    asked = CliRunner().invoke(cli, ["simulate", "--demand", "day"])
    assert (asked.exit_code, "which policies, on which demand?" in asked.output) == (2, True)
    wrong = CliRunner().invoke(cli, ["simulate", "--shapes", "--output", "html", "--file", str(tmp_path / "x.html")])
    assert (wrong.exit_code, "--shapes answers text or json" in wrong.output) == (2, True)
