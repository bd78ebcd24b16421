"""Profile `default` beside upstream's pairs: more even than the most even of them, for no higher price."""

from __future__ import annotations

import pytest

from anabranch.simulation.bundles.shapes import SHAPES
from tests.simulation.bundles.best import matches, table

STRONGEST = ("5.0 (AvgShedder)", "ThresholdShedder, message rate", "UniformLoadShedder, message rate")
"""Of all pairs the most even on most shapes; docs/decisions has all of them on more seeds."""
ONE_MORE = {"unloads": 1.0, "secondsUnserved": 10.0}
"""Of the median of so few seeds; over twenty seeds the page says where it is so."""


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - {"noisy"}))
def test_default_more_even_than_best_upstream_pair(shape):
    """Profile default makes one more unload at most."""
    (match,) = matches([shape], STRONGEST, range(201, 203))
    for column, (ours, best) in match.worse().items():
        assert ours - best <= ONE_MORE.get(column, 0.0), (column, ours, best)
    assert len(table([match]).splitlines()) == 4


def test_noise_moves_next_to_nothing():
    (match,) = matches(["noisy"], STRONGEST[:1], range(201, 203))
    assert match.ours.worst()["unloads"] <= 2
