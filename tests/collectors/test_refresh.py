"""When a broker computes its rates is learned from its answers: a load is read soon after, and seldom in vain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.pulsar.refresh import Refresh


def follow(period, phase, seconds, *, took=0.05, drift=0.0, idle_from=float("inf"), size=0):
    """Reads a broker that computes at phase, phase + period, …; (lag of each computation that was read, readings)."""
    refresh, now, reads, lags, seen = Refresh(period), 0.0, 0, [], -1
    while now < seconds:
        reads += 1
        turn = int((now - phase) // (period + drift))
        answered = now + took
        refresh.note(str(turn if now < idle_from else -99).encode(), now, answered, size)
        if turn != seen:
            lags.append((now, answered - (phase + turn * (period + drift))))
            seen = turn
        assert refresh.due_at() > now
        now = max(refresh.due_at(), answered)
    return lags, reads


@settings(max_examples=60)
@given(st.sampled_from([5.0, 10.0, 60.0]), st.floats(0, 60))
def test_a_load_is_read_within_two_seconds_of_its_computation(period, phase):
    lags, reads = follow(period, phase % period - period, 20 * period)
    assert len(lags) >= 19
    assert all(lag <= 2.0 for at, lag in lags if at > 2 * period)
    assert reads <= 20 * 2 + 2 * period / 1.5 + 10


@pytest.mark.parametrize("drift", [-0.02, 0.02])
def test_a_broker_whose_period_is_a_little_off_is_followed(drift):
    lags, reads = follow(60.0, 7.0, 3600, drift=drift)
    assert all(lag <= 2.0 for at, lag in lags if at > 120)
    assert reads < 400


def test_a_broker_where_nothing_happens_is_asked_less_often():
    _, reads = follow(60.0, 7.0, 1200, idle_from=300)
    assert reads < 60 + 5 * 2 + 900 / 5 + 60


def test_after_no_answer_nothing_is_known_any_more():
    refresh = Refresh(60.0)
    refresh.note(b"a", 0, 0.1)
    refresh.note(b"b", 2, 2.1)
    assert refresh.due_at() > 55
    refresh.forget()
    assert refresh.due_at() < 10


def test_a_long_answer_is_read_less_often_and_still_soon_after_its_computation():
    lags, reads = follow(60.0, 7.0, 1200, size=12_000_000)
    assert all(lag <= 2.0 for at, lag in lags if at > 300)
    assert reads < 60
