"""Demand over many nights: merging never freezes, whatever becomes of sealed segments."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from anabranch.simulation.topics import weeks as topic_weeks
from anabranch.simulation.topics.demands import Demand
from anabranch.simulation.topics.traces import Series, SeriesError, read_series, zipf_profile
from anabranch.simulation.topics.weeks import as_text, static_and_oracle, weeks
from decisions.autoscale.policy import PROFILES
from tests.examples import only_first
from tests.harness.reference_loop import STEP_MS, alone

HOUR = 3_600_000 // STEP_MS
THRESHOLD = 10_000.0


def nights(count: int) -> Demand:
    """So many nights of four hours, each between peaks of eight thresholds."""
    level = 0.1 + 7.9 * np.maximum(0.0, np.sin(2 * np.pi * np.arange(count * 4 * HOUR) / (4 * HOUR)))
    return Demand(np.repeat(level[:, None] * THRESHOLD / 16, 16, axis=1), np.zeros(len(level), np.int64))


def test_every_night_merges_with_any_pruning():
    demand = nights(4)
    pruned, kept = (alone(demand, PROFILES["default"], prunes=prunes) for prunes in (True, False))
    assert asdict(pruned) == asdict(kept)
    nightly = [
        sum(
            4 * HOUR * STEP_MS * night <= at < 4 * HOUR * STEP_MS * (night + 1) and what == "merge"
            for at, what, *_ in kept.log
        )
        for night in range(4)
    ]
    assert min(nightly[1:]) >= 4


def wave(days: int) -> Series:
    """A day of eight thresholds at noon and none at midnight, a point every hour."""
    at = np.arange(0, days * 24 + 1) * 3_600_000
    return Series("wave", at, 4.0 - 4.0 * np.cos(2 * np.pi * np.arange(len(at)) / 24))


def test_static_and_oracle_are_those_of_the_series():
    steady = Series("steady", np.array([0, 36_000_000]), np.array([2.5, 2.5]))
    assert static_and_oracle(steady) == pytest.approx((30.0, 30.0, 25.0))
    ramp = Series("ramp", np.array([0, 36_000_000]), np.array([0.0, 4.0]))
    assert static_and_oracle(ramp) == pytest.approx((40.0, 25.0, 20.0), rel=1e-3)


@pytest.mark.parametrize(("mild", "skewed"), only_first(1, [(0.63, 1.21), (0.0, 1.51)]))
def test_default_beats_the_text_of_the_pip_over_days(monkeypatch, mild, skewed):
    monkeypatch.setattr(topic_weeks, "EXPONENTS", (mild, skewed))
    rows = {(row.exponent, row.profile): row for row in weeks([wave(1)], [1])}
    assert len(rows) == 4
    pip, default = rows[mild, "pip-483"], rows[mild, "default"]
    assert default.minutes_over < pip.minutes_over / 4
    assert default.oracle_hours < default.segment_hours < pip.segment_hours
    assert default.reversals <= 0.02 * (default.splits + default.merges)
    assert rows[skewed, "default"].minutes_over <= rows[skewed, "pip-483"].minutes_over * 1.02
    assert len(as_text(list(rows.values())).splitlines()) == 6


@pytest.mark.parametrize(("exponent", "share"), [(0.63, 0.011), (1.21, 0.22), (1.51, 0.385)])
def test_hottest_key_carries_its_part_of_the_load(exponent, share):
    profile = zipf_profile(exponent, 1)
    assert profile.sum() == pytest.approx(1.0)
    assert profile.max() == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp,value\n",
        "timestamp,value\n2014-07-01 00:00:00,1\n2014-07-01 00:00:00,2\n",
        "timestamp,value\nnoon,1\n",
        "2014-07-01 00:00:00,-1\n",
    ],
)
def test_malformed_series_refused_with_line(tmp_path, text):
    file = tmp_path / "series.csv"
    file.write_text(text)
    with pytest.raises(SeriesError, match=r"series.csv"):
        read_series(file)
