"""Profiles on shapes of demand: the table, and the loop of one topic against the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import Timeline, even_slices
from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import SegmentLayout
from engine.autoscale.topics import ConfiguredPolicy
from tests.harness import shape_table
from tests.harness.demand_shapes import SHAPES
from tests.harness.reference_loop import alone
from tests.simulation.test_simulate_kernel import NOW, Drawn

DEFAULT = ConfiguredPolicy("default", None)


def test_shape_table_has_both_profiles(monkeypatch):
    """The default profile reverses a tenth of what the other does."""
    few = ("many consumers on a cold topic", "one hot key", "a burst of 20 minutes")
    monkeypatch.setattr(shape_table, "SHAPES", {name: SHAPES[name] for name in few})
    rows = shape_table.table(range(1, 3), 1)
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
    steps = np.arange(len(demand.rates))
    timeline = Timeline(
        even_slices(256), demand.rates[:, :, None], NOW + steps * 10_000, steps, factors=np.array([1.0, 0.0, 0.0, 0.0])
    )
    many = simulate(Drawn([timeline], [SegmentLayout.create(1, NOW)], len(steps)), {"default": DEFAULT})["default"]
    assert (came.splits, came.merges) == (many.splits[0], many.merges[0]) == (7, 7)
    assert came.segment_ms == pytest.approx(many.segment_ms[0], rel=0.02)
    assert came.over_ms == pytest.approx(many.over_ms[0], abs=40_000)


def test_simulate_needs_policy_and_names_the_benchmark():
    asked = CliRunner().invoke(cli, ["simulate", "--demand", "day"])
    assert (asked.exit_code, "Missing option '--policy'" in asked.output) == (2, True)
    moved = CliRunner().invoke(cli, ["simulate", "--shapes"])
    assert (moved.exit_code, "python -m benchmarks.profiles" in moved.output) == (2, True)
