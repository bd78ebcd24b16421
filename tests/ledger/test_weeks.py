"""Demand over many nights: merging never freezes, whatever becomes of sealed segments."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from decisions.autoscale.policy import PROFILES
from ledger.simulate.alone import STEP_MS, Demand, alone

HOUR = 3_600_000 // STEP_MS
THRESHOLD = 10_000.0


def nights(count: int) -> Demand:
    """So many nights of four hours, each between peaks of eight thresholds."""
    level = 0.1 + 7.9 * np.maximum(0.0, np.sin(2 * np.pi * np.arange(count * 4 * HOUR) / (4 * HOUR)))
    return Demand(np.repeat(level[:, None] * THRESHOLD / 16, 16, axis=1), np.zeros(len(level), np.int64))


def test_every_night_is_merged_with_pruning_and_without():
    demand = nights(6)
    pruned, kept = (alone(demand, PROFILES["default"], prunes=prunes) for prunes in (True, False))
    assert asdict(pruned) == asdict(kept)
    nightly = [sum(4 * HOUR * STEP_MS * night <= at < 4 * HOUR * STEP_MS * (night + 1) and what == "merge"
                   for at, what, *_ in kept.log) for night in range(6)]  # fmt: skip
    assert nightly[1:] == [pytest.approx(nightly[1], abs=1)] * 5
    assert nightly[1] >= 7
