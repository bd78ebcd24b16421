"""Profile `default` beside all upstream pairs: more even than the most even one, for no higher price.

What upstream's pairs come to is on record (`best`), so that ours meets all nine of them on more seeds.
"""

from __future__ import annotations

import json
from functools import cache
from statistics import median

import pytest

from anabranch.simulation.bundles.compare import Compared, compare
from anabranch.simulation.bundles.shapes import SHAPES
from tests.examples import only_first
from tests.simulation.bundles.best import OURS, PAIRS, RECORD, RECORDED_SEEDS

RECORDED = json.loads(RECORD.read_text())
WORSE = {
    ("hot", "unloads"): 1.0,
    ("hot", "secondsUnserved"): 3.2,
    ("unequal", "highestByMean"): 0.01,
    ("bursts", "highestByMean"): 0.01,
    ("noisy", "highestByMean"): 0.01,
}
"""Cells in which our median is higher than that of the most even pair, and by how much at most."""


EASY = ("flat", "noisy", "fan_out", "unequal", "join")
"""Shapes on which all balancers come close to each other: left to `make soak`."""


@cache
def ours_on(shape: str) -> Compared:
    """Our profile on the recorded seeds of a shape."""
    [ours] = compare([shape], [OURS], {}, RECORDED_SEEDS)
    return ours


@pytest.mark.parametrize("shape", only_first(1, sorted(SHAPES, key=EASY.__contains__)))
def test_default_more_even_than_every_upstream_pair(shape):
    ours = ours_on(shape)
    for pair, deviations in RECORDED[shape]["deviations"].items():
        assert ours.typical()["deviation"] <= median(deviations) + 1e-6, pair
    for column, values in RECORDED[shape]["columns"].items():
        assert ours.typical()[column] <= median(values) + WORSE.get((shape, column), 1e-6), column


@pytest.mark.parametrize(("place", "shape"), list(enumerate(SHAPES)))
def test_record_is_what_upstream_pairs_come_to(place: int, shape: str):
    """One pair of every shape on one seed: over all shapes every pair and every seed."""
    record, seed, pair = RECORDED[shape], place % len(RECORDED_SEEDS), list(PAIRS)[place]
    [found] = compare([shape], [PAIRS[pair]], {}, [RECORDED_SEEDS[seed]])
    assert found.values("deviation") == pytest.approx([record["deviations"][pair][seed]], abs=1e-6)
    assert record["best"] == min(PAIRS, key=lambda name: median(record["deviations"][name]))
    assert record["columns"]["deviation"] == record["deviations"][record["best"]]


def test_noise_moves_next_to_nothing():
    assert ours_on("noisy").worst()["unloads"] <= 2
