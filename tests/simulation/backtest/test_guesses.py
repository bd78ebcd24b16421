"""What had to be guessed: when, and how confidence comes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.simulation.backtest.assumptions import (
    band_intervals,
    ceiling_intervals,
    covers,
    division_intervals,
    layouts_of,
    length,
    measure_assumptions,
    merged,
    sum_assumptions,
)
from anabranch.simulation.backtest.demand import estimate_demand
from anabranch.simulation.backtest.incarnations import Announced, lives_of
from decisions.autoscale.policy import PROFILES, Policy
from decisions.topic.layout import SegmentLayout
from tests.simulation.backtest.test_demand import END, split_once, told

pairs = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12)
DEFAULT = PROFILES["default"]


@given(pairs, pairs)
def test_union_counts_overlapping_intervals_once(some, more):
    arrays = [np.array(one, np.int64).reshape(-1, 2) for one in (some, more)]
    found = merged(arrays, 10, 90)
    expected = {at for begin, end in (*some, *more) for at in range(begin, end) if 10 <= at < 90}
    assert {at for at in range(101) if covers(found, at)} == expected
    assert length(found) == len(expected)
    assert (np.diff(found.ravel()) > 0).all()


def test_confidence_is_share_of_time_without_guesses():
    one = measure_assumptions({"gap": np.array([[0, 20]]), "band": np.array([[10, 30], [200, 300]])}, 0, 100)
    assert one.by_kind == {"gap": 20, "ceiling": 0, "band": 20, "uneven": 0, "carried": 0}
    assert one.confidence == pytest.approx(0.7)
    assert sum_assumptions([one, measure_assumptions({}, 0, 300)]).confidence == pytest.approx(0.925)


def demanded(*rows):
    lives = lives_of([Announced(0, SegmentLayout.create(1, 0))], END)
    return estimate_demand(lives, told(*rows), 0, END)


def test_a_load_over_the_threshold_may_have_been_more():
    demand = demanded((0, 0, 10_000.0), (60_000, 0, 10_001.0), (120_000, 0, 500.0))
    assert ceiling_intervals(demand, DEFAULT).tolist() == [[60_000, 120_000]]


def test_load_within_unwatched_threshold_band():
    """The filter did not watch this threshold."""
    demand = demanded((0, 0, 9_000.0), (60_000, 0, 100.0))
    other = Policy(threshold_crossing=True, split_msg_rate_in_threshold=11_000.0)
    far = Policy(threshold_crossing=True, split_msg_rate_in_threshold=12_000.0)
    assert band_intervals(demand, DEFAULT, DEFAULT, 0.25).tolist() == []
    assert band_intervals(demand, other, DEFAULT, 0.25).tolist() == [[0, 60_000]]
    assert band_intervals(demand, far, DEFAULT, 0.25).tolist() == []
    assert band_intervals(demand, far, DEFAULT, 0.4).tolist() == [[0, 60_000]]
    # The profile pip-483 watches none.
    assert band_intervals(demand, PROFILES["pip-483"], PROFILES["pip-483"], 0.25).tolist() == [[0, 60_000]]


def test_never_separated_and_once_separated_hashes():
    layouts = split_once()
    first = layouts[0].layout
    lives = lives_of(layouts, END)
    edges = np.array([0, 0x8000, 0x10000])
    early, ranges = layouts_of(
        first, 0, [(60_000, "split", (0,)), (120_000, "split", (1,)), (7_000_000, "merge", (3, 4))]
    )
    assert ranges == [(0, 0xFFFF), (0, 0x7FFF), (0, 0x7FFF)]
    uneven, carried = division_intervals(early, lives, edges, END)
    assert length(merged([uneven], 0, END)) == 7_000_000 - 120_000
    assert merged([carried], 0, END).tolist() == [[60_000, 3_600_000]]
