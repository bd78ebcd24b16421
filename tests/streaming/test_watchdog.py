"""The watchdog: at each boundary instant, once per outage."""

from __future__ import annotations

import logging

import pytest

from streaming.job.watchdog import Watchdog, report_change


def watchdog() -> Watchdog:
    """Ticks every 60 s, an outage after 3; an evaluation is expected since second 1000."""
    return Watchdog(tick_seconds=60, ticks=3, last_evaluation=1000)


@pytest.mark.parametrize(
    ("now", "missed", "change"), [(1000, 0, None), (1059.9, 0, None), (1179.9, 2, None), (1180, 3, "began")]
)
def test_outage_begins_after_missed_ticks(now, missed, change):
    dog = watchdog()
    assert dog.missed_ticks(now) == missed
    assert dog.look(now) == change
    assert dog.is_outage is (change == "began")


def test_an_outage_is_said_once_and_so_is_its_end():
    dog = watchdog()
    assert [dog.look(now) for now in (1200, 1260, 9000)] == ["began", None, None]
    dog.evaluated(9001)
    assert [dog.look(now) for now in (9001, 9060)] == ["ended", None]
    assert dog.look(9001 + 180) == "began"


def test_evaluations_on_time_never_make_an_outage():
    dog = watchdog()
    for now in range(1060, 5000, 60):
        assert dog.look(now + 59) is None
        dog.evaluated(now)
    assert not dog.is_outage


def test_late_evaluation_does_not_turn_clock_back():
    dog = watchdog()
    dog.evaluated(1100)
    dog.evaluated(1050)
    assert dog.silent_seconds(1110) == 10


def test_an_outage_is_an_error_that_says_what_to_do(caplog):
    report_change("began", 181.2, 3, "Waiting for data to arrive")
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert "no evaluation for 181 s (limit: 3 ticks); the query says: Waiting for data" in line.message
    assert "Does Kafka answer" in line.message


def test_the_end_of_an_outage_is_a_line_too(caplog):
    report_change("ended", 0, 3, "")
    assert [line.message for line in caplog.records] == ["topics are evaluated again"]
