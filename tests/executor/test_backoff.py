"""Delays grow, stay within their bounds, and differ between executors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.backoff import Backoff


@given(failures=st.integers(1, 10_000))
def test_a_delay_is_between_the_first_and_the_longest(failures: int):
    assert 0.2 <= Backoff(0.2, 15).after(failures) <= min(15, 0.2 * 2 ** min(failures - 1, 10))


def test_the_first_delay_is_the_configured_one():
    assert Backoff(0.2, 15).after(1) == pytest.approx(0.2)


def test_joint_failures_return_spread_out():
    backoff = Backoff(0.2, 15)
    assert len({backoff.after(8) for _ in range(20)}) == 20


def test_permanent_errors_wait_half_the_maximum():
    assert all(7.5 <= Backoff(0.2, 15).slowly() <= 15 for _ in range(100))


def test_a_longest_delay_below_the_first_bounds_it():
    assert all(Backoff(10, 1).after(failures) == pytest.approx(1) for failures in range(1, 5))
