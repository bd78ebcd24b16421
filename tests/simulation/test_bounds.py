"""Lower bounds of policies that halve ranges, against every layout of halves of a small key space."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from anabranch.simulation.topics.traces import Series
from anabranch.simulation.topics.weeks import fewest_halves, halving_bound
from benchmarks.halving import grain_hours, steady_hours


def layouts_of_halves(first, last):
    """Yield every division of slices `first` to before `last` into halves, halves of halves and so on."""
    yield [(first, last)]
    if last - first > 1:
        middle = (first + last) // 2
        for lower, upper in product(layouts_of_halves(first, middle), layouts_of_halves(middle, last)):
            yield lower + upper


@pytest.mark.parametrize("seed", range(5))
def test_fewest_halves_are_the_smallest_layout(seed):
    chance = np.random.default_rng(seed)
    shares = chance.dirichlet(np.full(8, 0.7))
    loads = chance.uniform(0, 8, 40)
    segments, is_over = fewest_halves(loads, shares)
    layouts = list(layouts_of_halves(0, 8))
    for load, count, over in zip(loads, segments, is_over, strict=True):
        fits = [len(layout) for layout in layouts if all(load * shares[low:high].sum() <= 1 for low, high in layout)]
        assert over == (not fits)
        assert count == min(fits, default=1)


def test_uniform_keys_need_powers_of_two():
    hour = Series("steps", np.array([0, 3_600_000]), np.array([5.0, 5.0]))
    assert halving_bound(hour, np.full(16, 1 / 16)) == pytest.approx((8.0, 0.0))
    assert halving_bound(hour, np.array([0.3, 0.1, 0.3, 0.3])) == pytest.approx((1.0, 60.0))


def test_whole_pieces_have_their_hours():
    hours = np.repeat([5.0, 8.0], 360)
    assert grain_hours(hours, 16) == pytest.approx((6 + 8, 1))
    assert grain_hours(hours, 8) == pytest.approx((8 + 8, 0))


def test_steady_halves_bridge_short_gaps_and_last_half_an_hour():
    minutes = 6
    uniform = np.full(4, 0.25)
    gap = np.repeat([1.5, 0.5, 1.5, 0.5], [minutes, 20 * minutes, 40 * minutes, 59 * minutes])
    assert steady_hours(gap, uniform) == pytest.approx((120 + 61) / 60)
    burst = np.repeat([0.5, 1.5, 0.5], [60 * minutes, minutes, 59 * minutes])
    assert steady_hours(burst, uniform) == pytest.approx((120 + 30) / 60)
    at_the_end = np.repeat([0.5, 1.5], [110 * minutes, 10 * minutes])
    assert steady_hours(at_the_end, uniform) == pytest.approx((120 + 10) / 60)


def test_steady_bound_has_a_segment_under_a_hot_slice():
    assert steady_hours(np.full(360, 5.0), np.array([0.3, 0.1, 0.3, 0.3])) == pytest.approx(1.0)
