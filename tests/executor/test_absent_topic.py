"""A topic that the job knows and the cluster does not: the engine, a real executor and a real controller.

The job's clock is virtual, so an hour of ticks passes at once; the executor and the controller are as in production.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decisions.autoscale.policy import PROFILES
from decisions.topic.layout import SegmentLayout
from engine.kernel.records import RawRecord
from lake.tables import OpenTable, create_table
from schemas.tables.rows import DECISIONS
from streaming.operator.rows import rare_rows
from tests.engine.buckets import Bucket, topics_of
from tests.engine.records import layout, record, stats, tick
from tests.executor.conftest import House
from tests.waiting import wait_until

NOW, SECOND, MINUTE = 1_763_660_000_000, 1_000, 60_000
HOT = 15_000.0
"""Above the threshold of a split, and below it once the segment was split."""


class Job:
    """The job without Spark: the engine, its decisions into the lake, the executor's outcomes back into the engine."""

    def __init__(self, house: House, topic: str, known: SegmentLayout) -> None:
        self.topic, self.bucket, self._house, self._batches, self._heard = topic, Bucket(), house, 0, 0
        self._table = OpenTable(create_table(house.lake, DECISIONS))
        self.decided: list[int] = []
        """Instants of the decisions."""
        self.holds: list[dict] = []
        self.batch(NOW, layout(known, topic=topic))

    def batch(self, now: int, *records: RawRecord) -> None:
        """Run a batch; if it decides, wait for the outcomes and take them in two seconds later."""
        output = self.bucket.batch(now, *records)
        self.holds += output.holds
        if not output.decisions:
            return
        self.decided += [row["decided_at"] for row in output.decisions]
        self._batches += 1
        rows = rare_rows(DECISIONS, [output.bodies()[DECISIONS.name]], self._batches)
        self._table.append(rows, "job", self._batches)
        heard = self._heard + len(output.decisions)
        wait_until(lambda: len(self._house.published.events) >= heard)
        self.bucket.batch(now + 2 * SECOND, *self._outcomes())

    def tick(self, now: int, segments: int) -> None:
        """Run an evaluation with every segment hot."""
        self.batch(now, stats(dict.fromkeys(range(segments), HOT), now, self.topic), tick(now))

    @property
    def failures(self) -> int:
        """Failures in a row that the job counts for the topic."""
        return topics_of(self.bucket.packed).topics[self.topic].failures.in_a_row

    def _outcomes(self) -> Iterator[RawRecord]:
        events = self._house.published.events[self._heard :]
        self._heard += len(events)
        for event in events:
            yield record("control-events", event.topic, event.to_json().encode())


@pytest.mark.parametrize("segments", [1, pytest.param(8, marks=pytest.mark.soak)])
def test_absent_topic_is_decided_on_seven_times_an_hour(house: House, segments: int):
    """An hour of ticks has at most seven evaluations that decide.

    The pause is 30 s and doubles, so the eighth would come 30 s * (2^7 - 1) = 3,810 s after the first or later.
    """
    assert PROFILES["default"].retry_backoff_ms == 30 * SECOND
    job = Job(house, f"topic://{house.namespace}/absent", SegmentLayout.create(segments, NOW - MINUTE))
    with house.running():
        for minute in range(1, 61):
            job.tick(NOW + minute * MINUTE, segments)
    minutes = sorted({(decided_at - NOW) // MINUTE for decided_at in job.decided})
    assert minutes == [1, 2, 4, 7, 12, 21, 38]
    assert len(job.decided) == 7 * segments
    assert job.failures == 7
    assert {(end["status"], end["error"]) for end in house.ends()} == {("superseded", "the topic is gone")}
    assert house.gate.count("POST") == 0
    assert house.gate.count("GET") == 2 * len(job.decided), "one look and one that confirms it"
    assert job.holds[-1]["gate"] == "retry-backoff"


def test_absent_topic_is_split_once_it_exists(house: House):
    topic = f"topic://{house.namespace}/late"
    job = Job(house, topic, SegmentLayout.create(1, NOW - MINUTE))
    with house.running():
        job.tick(NOW + MINUTE, 1)
        assert job.failures == 1
        house.create("late")
        job.batch(NOW + 90 * SECOND, layout(house.layout(topic), topic=topic))
        job.tick(NOW + 3 * MINUTE, 1)
    assert [end["status"] for end in house.ends()] == ["superseded", "applied"]
    assert job.failures == 0
    assert len(house.layout(topic).active) == 2


def test_restarted_executor_announces_the_absence_again(house: House):
    split = house.decide(house.create("orders"), 0)
    house.delete(split.subject)
    with house.running():
        house.commit(split)
        wait_until(lambda: house.published.events)
    (first,) = house.published.events
    house.published.events.clear()
    with house.running():
        wait_until(lambda: house.published.events)
    assert first.absent
    assert house.published.events[0] == first


def test_changed_topic_is_not_absent(house: House):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    house.post(topic, "split/0")
    with house.running():
        house.commit(split)
        house.end(split)
        wait_until(lambda: house.published.events)
    (event,) = house.published.events
    assert (event.status, event.absent) == ("superseded", False)
