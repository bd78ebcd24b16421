"""Samples in columns through the real job: the same loads and decisions as of samples topic by topic."""

from __future__ import annotations

import json

import pytest

from decisions.topic.layout import SegmentLayout
from schemas.settings.root import load_settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, SEGMENT_LOAD
from tests.engine.records import columns, layout, stats, tick
from tests.streaming.crashes import crashing_sink
from tests.streaming.jobs import BATCH_SECONDS, TOPICS, Feed, check_nothing_lost_and_nothing_twice, now_ms, read, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]


@pytest.mark.soak
def test_columns_equal_single_samples_after_crash(start, job_settings, own_broker):
    """A bad sample is one dead letter."""
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    by_topic, together = TOPICS[:2], TOPICS[2:]
    rounds = [({0: 14_000.0, 1: 1.0}, {0: 50.0, 1: 60.0}), ({0: 30_000.0, 1: 1.1}, {0: 11_000.0, 1: 61.0})]

    def report(number: int, *, bad: bool) -> None:
        at, loads = now_ms(), rounds[number]
        of_all = {**({TOPICS[0]: {1: -1.0}} if bad else {}), **dict(zip(together, loads, strict=True))}
        plain = [stats(rates, at, topic) for topic, rates in zip(by_topic, loads, strict=True)]
        feed.send(*plain, columns(of_all, at, "broker-2"))
        wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.1)

    job = start(crashing_sink("dead_letters:after"))
    feed.send(*[layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS])
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.1)
    report(0, bad=True)
    assert "crashed at dead_letters:after" in str(job.end().__cause__)
    job = start()
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.1)
    report(1, bad=False)
    feed.send(tick(now_ms()))
    wait_until(lambda: not job.is_running or read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.1)
    job.stop()

    check_nothing_lost_and_nothing_twice(settings, feed)
    loads = {topic: [] for topic in TOPICS}
    for row in sorted(rows(settings, SEGMENT_LOAD), key=lambda row: row["sampled_at"]):
        loads[row["topic"]].append((row["segment_id"], row["msg_rate_in"], row["cause"]))
    decided = {row["subject"]: (row["action"], row["arguments"], row["reason"]) for row in rows(settings, DECISIONS)}
    assert decided.keys() == set(TOPICS)
    for plain, in_columns in zip(by_topic, together, strict=True):
        assert sorted(loads[plain]) == sorted(loads[in_columns]) != []
        assert decided[plain] == decided[in_columns]
    (letter,) = rows(settings, DEAD_LETTERS)
    assert (letter["reason"], letter["sample"], letter["key"]) == ("invalid", 0, b"broker-2")
    assert json.loads(letter["raw"])["topic"] == TOPICS[0]
    assert sum(row["samples_refused"] for row in rows(settings, BATCHES)) == 1
    assert sum(row["samples"] for row in rows(settings, BATCHES)) == 16
