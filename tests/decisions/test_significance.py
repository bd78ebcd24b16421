"""Significant change: each rate against its last accepted value, strictly; zero; crossing a threshold; over columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.autoscale.policy import PROFILES
from decisions.autoscale.significance import CAUSES, accept_cause, accept_causes, are_cold, crossing_thresholds, is_cold

PIP, DEFAULT = PROFILES["pip-483"], PROFILES["default"]
BASE = (1_500.0, 6e6, 6_000.0, 26e6)


def one(number, rate, rest=BASE):
    return tuple(rate if place == number else other for place, other in enumerate(rest))


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        (2_000.0, 2_500.0, None),
        (2_000.0, math.nextafter(2_500.0, 9e9), "changed"),
        (2_000.0, 1_500.0, None),
        (2_000.0, math.nextafter(1_500.0, 0), "changed"),
        (2_000.0, 2_000.0, None),
        (0.0, 0.0, None),
        (0.0, 5e-324, "changed"),
        (2_000.0, 0.0, "changed"),
        (5e-324, 1e-323, "changed"),
        (1.7e308, 1e-300, "changed"),
    ],
)
def test_rate_significant_beyond_a_quarter(last, now, expected):
    assert accept_cause(one(0, last), one(0, now), 0.25, None) == expected


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_rate_is_compared_with_its_own_last(number):
    before = one(number, 2_000.0)
    assert accept_cause(before, one(number, 2_500.0), 0.25, None) is None
    assert accept_cause(before, one(number, math.nextafter(2_500.0, 9e9)), 0.25, None) == "changed"


def test_first_record_accepted_even_if_zero():
    assert accept_cause(None, (0.0,) * 4, 0.25, DEFAULT) == "first"


def test_a_fall_to_zero_is_not_more_than_the_whole():
    assert accept_cause(one(0, 5.0), one(0, 0.0), 1.0, None) is None
    assert accept_cause(one(0, 0.0), one(0, 5.0), 1.0, None) == "changed"


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        (9_000.0, 11_000.0, "crossed"),
        (9_000.0, 10_000.0, None),
        (10_000.0, math.nextafter(10_000.0, 9e9), "crossed"),
        (11_000.0, 10_000.0, "crossed"),
        (11_000.0, 12_000.0, None),
        (1_000.0, 999.0, "crossed"),
        (999.0, 1_000.0, "crossed"),
        (1_100.0, 1_000.0, None),
    ],
)
def test_threshold_crossing_significant_with_guard(last, now, expected):
    """Without the guard, a crossing inside the band is not significant."""
    assert accept_cause(one(0, last), one(0, now), 0.25, DEFAULT) == expected
    assert accept_cause(one(0, last), one(0, now), 0.25, PIP) is None


rate = st.one_of(
    st.sampled_from([0.0, 5e-324, 1.0, 1.25, 999.0, 1_000.0, 1_250.0, 9_999.0, 10_000.0, 10_001.0, 5e6, 1.7e308]),
    st.floats(0, 1.7e308),
    st.floats(0, 2e4),
)
four = st.tuples(rate, rate, rate, rate)


@given(st.lists(st.tuples(st.none() | four, four, st.booleans()), max_size=30), st.sampled_from([0.0, 0.25, 1.0, 2.0]))
def test_columns_equal_the_scalar_reference(samples, threshold):
    last = np.array([before or (math.nan,) * 4 for before, _, _ in samples], np.float64).reshape(-1, 4)
    has_last = np.array([before is not None for before, _, _ in samples], np.bool_)
    current = np.array([now for _, now, _ in samples], np.float64).reshape(-1, 4)
    limits = crossing_thresholds(DEFAULT)
    thresholds = np.array([limits if crossing else [math.nan] * 12 for _, _, crossing in samples]).reshape(-1, 12)
    expected = [
        accept_cause(before, now, threshold, DEFAULT if crossing else None) for before, now, crossing in samples
    ]
    codes = accept_causes(last, has_last, current, threshold, thresholds)
    assert codes.dtype == np.int8
    assert [CAUSES.get(int(code)) for code in codes] == expected
    without = [accept_cause(before, now, threshold, None) for before, now, _ in samples]
    assert [CAUSES.get(int(code)) for code in accept_causes(last, has_last, current, threshold, None)] == without


@given(st.lists(four, max_size=20))
def test_cold_columns_equal_the_scalar_rule(samples):
    columns = np.array(samples, np.float64).reshape(-1, 4)
    assert are_cold(columns, np.array(DEFAULT.merge_thresholds)).tolist() == [is_cold(one, DEFAULT) for one in samples]
