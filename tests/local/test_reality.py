"""Predictions of a backtest and of simulations against the whole system, executor included, on one seeded demand."""

from __future__ import annotations

import pytest

from anabranch.simulation.backtest.spilling import instant
from tests.harness.raw_rows import counts_of
from tests.harness.real_runs import COUNTS, POLICIES, judged, run_both
from tests.local.lake import at, decision, layout_event, layout_json, load, outcome, write
from tests.local.running import superseded_by_others

MINUTES, TOPICS = 2.5, 24
BOUNDS = {"splits": 0.1, "merges": 0.1, "segmentHours": 0.1, "minutesOverThreshold": 0.2}
FLOORS = {"splits": 5, "merges": 5, "segmentHours": 0.1, "minutesOverThreshold": 2.0}
"""Of a short run, what a part is too little for: a tick more or less of a topic. Minutes: benchmarks/backtest.txt."""


@pytest.mark.soak
@pytest.mark.local_run
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.timeout(1500)
def test_predictions_come_true(tmp_path, jars):
    run_both(tmp_path, MINUTES, TOPICS, seed=7)
    report = judged(tmp_path)
    far = [
        (one["record"], one["policy"], by, count, predicted[count], one["real"][count])
        for one in report["comparisons"]
        for by, predicted in one["predicted"].items()
        for count in COUNTS
        if abs(predicted[count] - one["real"][count]) > max(BOUNDS[count] * one["real"][count], FLOORS[count])
    ]
    assert min(one["real"]["splits"] for one in report["comparisons"]) > 20
    assert [row for name in POLICIES for row in superseded_by_others(tmp_path / name / "lake")] == []
    assert all(ended.get("superseded", 0) <= 0.05 * sum(ended.values()) for ended in report["outcomes"].values())
    assert far == [], f"from decision to layout {report['lagSeconds']} s"


def test_raw_rows_are_added_up(tmp_path):
    lake = str(tmp_path / "lake")
    write(
        lake,
        layout_event(layout_json((0, 0, 65535)), 0),
        load(0, 5_000.0, 10),
        load(0, 20_000.0, 60),
        decision(70),
        outcome("d1", "intent", 71),
        outcome("d1", "applied", 72),
        decision(75, 2, decision_id="d2"),
        outcome("d2", "superseded", 76),
        layout_event(layout_json((0, 0, 65535), (1, 0, 32767), (2, 32768, 65535), epoch=1, sealed=(0,)), 90),
        # A sealed segment's load counts no more.
        load(0, 20_000.0, 91),
        load(1, 10_001.0, 120),
        load(2, 9_000.0, 125),
        load(1, 10.0, 180),
        layout_event(layout_json((1, 0, 32767)), 240, "deleted"),
    )
    begin, end = instant(at(30)), instant(at(300))
    limits = (10_000.0, 1e12, 1e12, 1e12)
    found = counts_of(lake, begin, end, limits)
    # Layouts are heard a tenth of a second after they are said.
    assert found["segmentHours"] * 3600 == pytest.approx((90.1 - 30) + 2 * 150)
    assert found["minutesOverThreshold"] * 60 == pytest.approx((90.1 - 60) + 60)
    assert (found["splits"], found["merges"]) == (1, 0)
    assert counts_of(lake, instant(at(80)), end, limits)["splits"] == 0
