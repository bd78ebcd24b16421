"""Rates of Kafka's segments: right over their window, and unknown rather than wrong."""

from __future__ import annotations

import pytest

from anabranch.collectors.kafka.rates import OffsetProgress, SegmentProgress


def progress_of(window: float, *readings: tuple[float, int]) -> OffsetProgress:
    progress = OffsetProgress(window)
    for at, offset in readings:
        progress.add(at, offset)
    return progress


def test_rate_needs_two_readings():
    assert progress_of(60).rate(0) is None
    assert progress_of(60, (0, 100)).rate(0) is None
    assert progress_of(60, (0, 100), (10, 300)).rate(10) == 20


def test_rate_rolls_over_the_window():
    readings = [(10.0 * number, 0 if number < 6 else 600 * (number - 6)) for number in range(13)]
    assert progress_of(60, *readings).rate(120) == 60


def test_offset_that_went_back_is_unknown():
    progress = progress_of(60, (0, 1_000), (10, 2_000))
    assert not progress.add(20, 5)
    assert progress.rate(20) is None
    assert progress.add(30, 25)
    assert progress.rate(30) == 2


def test_rate_is_unknown_after_a_gap():
    progress = progress_of(60, (0, 0), (10, 1_000))
    assert progress.rate(70) == 100
    assert progress.rate(71) is None
    progress.add(600, 60_000)
    assert progress.rate(600) is None


def segment_of(**subscriptions: list[tuple[float, int | None]]) -> SegmentProgress:
    """A segment with 20 messages of 50 bytes per second, read at 0 and 10."""
    segment = SegmentProgress(60, message_bytes=50.0)
    segment.end.add(0, 0)
    segment.end.add(10, 200)
    segment.follow(subscriptions, 60)
    for name, readings in subscriptions.items():
        for at, offset in readings:
            segment.add_position(name, at, offset)
    return segment


def test_rates_add_up_all_subscriptions():
    segment = segment_of(billing=[(0, 0), (10, 200)], search=[(0, 0), (10, 50)])
    assert segment.rates(10) == (20, 1_000, 25, 1_250)
    assert (segment.lag("billing"), segment.lag("search")) == (0, 150)


@pytest.mark.parametrize("readings", [[], [(10, 100)], [(0, 150), (10, 100)]], ids=["unread", "one", "moved-back"])
def test_unknown_position_makes_rates_unknown(readings):
    assert segment_of(billing=[(0, 0), (10, 200)], search=readings).rates(10) is None


def test_group_without_position_reads_nothing():
    assert segment_of(billing=[(0, None), (10, None)]).rates(10) == (20, 1_000, 0, 0)


def test_subscription_made_again_begins_anew():
    segment = segment_of(billing=[(0, 100), (5, 150), (10, None)])
    assert segment.lag("billing") is None
    segment.add_position("billing", 15, 180)
    assert segment.rates(15) is None
    assert segment.lag("billing") == 20


def test_bytes_are_unknown_until_measured():
    segment = segment_of()
    segment.message_bytes = None
    assert segment.rates(10) is None
    silent = SegmentProgress(60)
    silent.end.add(0, 7)
    silent.end.add(10, 7)
    assert silent.rates(10) == (0, 0, 0, 0)
