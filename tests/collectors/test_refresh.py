"""When a broker computes its rates is learned from its answers: a load is read soon after, and seldom in vain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.collectors.pulsar.refresh import Refresh
from tests.examples import examples


def follow(period, phase, seconds, *, took=0.05, drift=0.0, idle_from=float("inf"), size=0, late=None):
    """Reads a broker that computes at phase, phase + period, …, some of `late` seconds after that; (lag of each
    computation that was read, readings)."""
    refresh, now, reads, lags, seen = Refresh(period), 0.0, 0, [], -1
    late = late or {}
    while now < seconds:
        reads += 1
        turn = int((now - phase) // (period + drift))
        due = phase + turn * (period + drift)
        if now < due + late.get(turn, 0.0):
            turn -= 1
            due -= period + drift
        answered = now + took
        is_new = refresh.note(str(turn if now < idle_from else -99).encode(), now, answered, size)
        if turn != seen:
            lags.append((now, answered - (due + late.get(turn, 0.0))))
            seen = turn
            if is_new and refresh.lag is not None and not late:
                assert lags[-1][1] <= refresh.lag + 0.1, "the lag that is said is the most that it can be"
        assert refresh.due_at() > now
        now = max(refresh.due_at(), answered)
    return lags, reads


@examples(15)
@given(st.sampled_from([5.0, 10.0, 60.0]), st.floats(0, 60))
def test_load_read_within_two_seconds(period, phase):
    lags, reads = follow(period, phase % period - period, 20 * period)
    assert len(lags) >= 19
    assert all(lag <= 2.0 for at, lag in lags if at > 2 * period)
    assert reads <= 20 * 2 + 2 * period / 1.5 + 10


@pytest.mark.parametrize("drift", [-0.02, 0.02])
def test_slightly_irregular_broker_is_followed(drift):
    lags, reads = follow(60.0, 7.0, 3600, drift=drift)
    assert all(lag <= 2.0 for at, lag in lags if at > 120)
    assert reads < 400


def test_idle_broker_asked_less_often():
    _, reads = follow(60.0, 7.0, 1200, idle_from=300)
    assert reads < 60 + 5 * 2 + 900 / 5 + 60


def test_after_no_answer_nothing_is_known_any_more():
    refresh = Refresh(60.0)
    refresh.note(b"a", 0, 0.1)
    refresh.note(b"b", 2, 2.1)
    assert refresh.due_at() > 55
    refresh.forget()
    assert refresh.due_at() < 10


def test_long_answer_read_less_often_yet_promptly():
    lags, reads = follow(60.0, 7.0, 1200, size=12_000_000)
    assert all(lag <= 2.0 for at, lag in lags if at > 68), "all but the first, which nobody could expect"
    assert reads < 60


@examples(15)
@given(st.floats(0, 60), st.sets(st.integers(3, 38), max_size=6), st.floats(1.0, 8.0))
def test_late_computation_does_not_delay_next_reads(phase, turns, seconds):
    late = {turn: seconds for turn in turns if turn - 1 not in turns}
    lags, reads = follow(60.0, phase - 60, 2400, size=10_000_000, took=0.4, late=late)
    assert sum(lag > 2.0 for at, lag in lags if at > 130) <= 2 * len(late)
    assert sorted(lag for at, lag in lags)[len(lags) // 2] <= 1.5
    assert reads < 150


def test_late_instants_are_learned_anew():
    lags, _ = follow(60.0, 0.0, 2400, late=dict.fromkeys(range(5, 9), 6.0))
    assert all(lag <= 2.0 for at, lag in lags if at > 60 * 15)
