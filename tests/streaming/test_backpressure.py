"""How many messages of samples a batch may hold, for a job of known speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.job.backpressure import FEWEST, FIRST, MAX_SAMPLES, BatchPace

pytestmark = pytest.mark.unit
FIXED_SECONDS = 0.25


def batches(
    pace: BatchPace, samples_a_message: int, samples_a_second: float, backlog: float, count: int
) -> list[float]:
    """Seconds of the next `count` batches of a job that has `backlog` messages to read."""
    took = []
    for _ in range(count):
        messages = int(min(backlog, pace.messages))
        backlog -= messages
        took.append(FIXED_SECONDS + messages * samples_a_message / samples_a_second)
        pace.observe(messages, messages * samples_a_message, took[-1])
    return took


@given(st.integers(1, 1_000), st.floats(100_000, 2_000_000))
def test_backlog_fills_batches_to_time_limit(samples_a_message, samples_a_second):
    pace = BatchPace(most=1_000_000, goal_seconds=2.0)
    last = batches(pace, samples_a_message, samples_a_second, 1e12, 40)[-1]
    by_count = FIXED_SECONDS + MAX_SAMPLES / samples_a_second
    by_fewest = FIXED_SECONDS + FEWEST * samples_a_message / samples_a_second
    assert last <= max(2.05, by_fewest)
    assert last >= 0.9 * min(2.0, by_count)


def test_first_batch_of_large_messages_is_small():
    pace = BatchPace(most=50_000, goal_seconds=2.0)
    first, *others = batches(pace, 10_000, 400_000.0, 1e12, 10)
    assert first == FIXED_SECONDS + FIRST * 10_000 / 400_000
    assert max(others) <= FIXED_SECONDS + MAX_SAMPLES / 400_000


def test_balanced_input_is_not_held_back():
    pace = BatchPace(most=50_000, goal_seconds=2.0)
    batches(pace, 10, 400_000.0, 1e12, 10)
    allowed = pace.messages
    for _ in range(100):
        pace.observe(3_000, 30_000, 0.4)
    assert pace.messages == allowed


def test_slow_batch_for_other_reason_recovers():
    pace = BatchPace(most=50_000, goal_seconds=2.0)
    batches(pace, 10, 400_000.0, 1e12, 10)
    before = pace.messages
    pace.observe(20, 200, 10.0)
    assert pace.messages == FEWEST
    took = batches(pace, 10, 400_000.0, 1e12, 6)
    assert pace.messages > 0.9 * before
    assert max(took) <= 2.05


def test_a_batch_without_samples_says_nothing():
    pace = BatchPace(most=50_000, goal_seconds=2.0)
    pace.observe(0, 0, 60.0)
    assert pace.messages == FIRST


def test_batch_size_limited_by_settings():
    pace = BatchPace(most=60, goal_seconds=2.0)
    batches(pace, 1, 1e9, 1e12, 10)
    assert pace.messages == 60
