"""The load report's rule at its limits, and reports that come twice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.bundles.reports import LoadOfReport, is_reported, largest_change, relative_change

LAST = LoadOfReport(at=0, usage=0.5, rate=100.0, throughput=1_000.0, bundles=10)

amounts = st.floats(0, 1e12)
loads = st.builds(LoadOfReport, st.integers(0, 10**6), st.floats(0, 10), amounts, amounts, st.integers(0, 10**4))


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({}, False),
        ({"at": 900_000}, False),
        ({"at": 900_001}, True),
        ({"rate": 110.0}, False),
        ({"rate": 110.1}, True),
        ({"rate": 89.9}, True),
        ({"throughput": 1_100.0}, False),
        ({"throughput": 1_101.0}, True),
        ({"bundles": 11}, False),
        ({"bundles": 12}, True),
        # Six points are twelve percent of what it was: points count.
        ({"usage": 0.56}, False),
        ({"usage": 0.61}, True),
    ],
)
def test_a_report_is_written_strictly_beyond_a_limit(changed, reported):
    assert is_reported(LAST, LAST._replace(**changed)) is reported


def test_first_and_forced_reports_are_written():
    assert is_reported(None, LAST)
    assert is_reported(LAST, LAST, forced=True)


def test_change_from_zero_is_infinite():
    assert (relative_change(0, 0), relative_change(0, 0.001), relative_change(5, 0)) == (0, math.inf, 100)
    assert is_reported(LAST._replace(rate=0.0), LAST._replace(rate=0.001), threshold=1e300)


@given(loads, loads, st.floats(0, 1_000), st.integers(0, 10**6))
def test_unreported_changes_stay_within_limits(last, now, threshold, interval):
    if not is_reported(last, now, threshold=threshold, max_interval_ms=interval):
        assert now.at - last.at <= interval
        assert abs(now.usage - last.usage) * 100 <= threshold
        for old, new in ((last.rate, now.rate), (last.throughput, now.throughput), (last.bundles, now.bundles)):
            assert abs(new - old) * 100 <= threshold * old * (1 + 1e-9)


@given(loads)
def test_a_load_does_not_differ_from_itself(load):
    assert largest_change(load, load) == 0
