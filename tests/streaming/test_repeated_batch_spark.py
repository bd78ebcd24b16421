"""A batch that was cut off between two commits and is repeated by a job with other settings: lake and state agree."""

from __future__ import annotations

import pytest

from decisions.topic.layout import SegmentLayout
from schemas.settings.root import load_settings
from schemas.tables.rows import DECISIONS, HOLDS, SEGMENT_LOAD
from tests.engine.records import layout, policy, stats, tick
from tests.streaming.crashes import crashing_sink
from tests.streaming.jobs import (
    BATCH_SECONDS,
    TOPICS,
    Feed,
    check_nothing_lost_and_nothing_twice,
    now_ms,
    read,
    rows,
    stop_when_all_is_read,
)
from tests.streaming.test_state_spark import known
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]


def test_decision_of_first_attempt_stays_open(spark, start, job_settings, own_broker):
    """It stays open although the new settings would not take it."""
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)

    def threshold(value: float) -> None:
        lines = [line for line in job_settings.read_text().splitlines() if not line.startswith("change_threshold")]
        job_settings.write_text("\n".join([*lines, f"change_threshold = {value}", ""]))

    threshold(0.01)
    job = start(crashing_sink("decisions:after"))
    feed.send(
        *[layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS],
        policy({"thresholdCrossing": False, "splitMsgRateInThreshold": 10_000}, "acme/shop"),
        *[stats({0: 9_500.0, 1: 1.0}, now_ms(), topic) for topic in TOPICS],
    )
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.1)
    # Ten per cent more: of note for the first attempt, and across the threshold; not so for the second.
    feed.send(stats({0: 10_400.0}, now_ms(), TOPICS[0]))
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.1)
    feed.send(tick(now_ms()))
    assert "crashed at decisions:after" in str(job.end().__cause__)
    [decision] = rows(settings, DECISIONS)
    assert rows(settings, HOLDS) == []

    threshold(0.5)
    job = start()
    stop_when_all_is_read(job, start, settings, feed)
    assert rows(settings, DECISIONS) == [decision]
    assert known(spark, settings)[TOPICS[0]]["openDecision"]["decision_id"] == decision["decision_id"]
    assert len(rows(settings, SEGMENT_LOAD)) == 2 * len(TOPICS) + 1
    check_nothing_lost_and_nothing_twice(settings, feed)
