"""A decision that the executor knows already, and comes again, is answered again: whoever decides waits for its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Container
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from anabranch.executor.kernel.announcer import LOOK_SECONDS, MAX_LOOK_SECONDS, Announcer
from anabranch.executor.kernel.decision import follow_decisions
from anabranch.executor.kernel.loop import utc_now
from anabranch.executor.kernel.outcomes import RecordedEnd
from lake.tables import create_table, table_path
from lake.tail import Tail
from schemas.tables.rows import DECISIONS, EVENTS, EventRow
from tests.examples import only_first
from tests.executor.conftest import Clock, Collected, House
from tests.executor.gate import answers
from tests.local.lake import write
from tests.waiting import wait_until

TOPIC = "topic://acme/shop/orders"


def told(house: House) -> list[tuple[str, str]]:
    return [(event.decision_id, event.status) for event in house.published.events]


@pytest.mark.parametrize(("mode", "end"), [("act", "applied"), ("observe", "observed")])
def test_repeated_decision_answered_without_call(house: House, mode, end):
    split = house.decide(house.create("orders"), 0)
    with house.running(mode=mode):
        house.commit(split)
        wait_until(lambda: told(house) == [(split.decision_id, end)])
        house.commit(split)
        wait_until(lambda: told(house) == [(split.decision_id, end)] * 2)
    assert len(house.ends(split)) == 1
    assert house.gate.count("POST") == (mode == "act")


def test_decision_repeated_during_downtime_is_answered(house: House):
    """It is answered even if another decision ended last."""
    topic = house.create("orders")
    first = house.decide(topic, 0)
    with house.running():
        house.commit(first)
        house.end(first)
        second = house.decide(topic, 1)
        house.commit(second)
        house.end(second)
    for one in (first, second):
        Job(house.lake).takes_in(an_end(one.decision_id, "applied"), datetime.now(timezone.utc))
    house.commit(first, decided_at=utc_now() + timedelta(minutes=1))
    house.published.events.clear()
    with house.running():
        assert told(house) == [(first.decision_id, "applied")]
    assert len(house.ends()) == 2


def test_decision_repeated_while_open_answered_once(house: House):
    split, repeated = house.decide(house.create("orders"), 0), threading.Event()
    house.gate.on("POST", answers(503, "busy"), answers(503, "busy"))
    house.gate.before_next("POST", lambda: repeated.wait(60))
    with house.running():
        house.commit(split)
        house.commit(split)
        repeated.set()
        house.end(split)
        later = house.decide(house.create("later"), 0)
        house.commit(later)
        house.end(later)
    assert told(house) == [(split.decision_id, "applied"), (later.decision_id, "applied")]


def held(tail: Tail, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Returns when the executor is about to look at a tail; it does so when the event is set."""
    arrived, may_look, look = threading.Event(), threading.Event(), tail.read

    def look_when_allowed(known: Container[str] = ()) -> list[dict[str, Any]]:
        arrived.set()
        assert may_look.wait(60)
        return look(known)

    monkeypatch.setattr(tail, "read", look_when_allowed)
    assert arrived.wait(60)
    return may_look


def cut_log(lake: str) -> None:
    """The log of the decisions keeps nothing but a checkpoint and its newest entry."""
    table = DeltaTable(table_path(lake, DECISIONS))
    table.create_checkpoint()
    for version in range(table.version()):
        (Path(table_path(lake, DECISIONS)) / "_delta_log" / f"{version:020}.json").unlink()


@pytest.mark.parametrize("failures", only_first(1, [2, 0]))
def test_decisions_behind_truncated_log_answered(house: House, monkeypatch, failures):
    """Known ones are answered, too, even when the lake fails between two reads."""
    topic = house.create("orders")
    split, new = house.decide(topic, 0), house.decide(house.create("new"), 0)
    with house.running() as executor:
        house.commit(split)
        wait_until(lambda: told(house) == [(split.decision_id, "applied")])
        tail = executor._tail
        may_look, newest, left = held(tail, monkeypatch), tail.newest_values, [OSError("gone")] * failures

        def newest_when_it_works(*by: str) -> list[Any]:
            if left:
                raise left.pop()
            return newest(*by)

        monkeypatch.setattr(tail, "newest_values", newest_when_it_works)
        house.commit(new)
        for _ in range(3):
            house.commit(split)
        cut_log(house.lake)
        house.published.events.clear()
        may_look.set()
        wait_until(lambda: {(one.decision_id, "applied") for one in (new, split)} <= set(told(house)))
        assert told(house).count((split.decision_id, "applied")) == 1
    assert len(house.ends(new)) == 1
    assert not left


def test_invalid_unicode_refusal_recorded_and_announced(house: House):
    split = house.decide(house.create("orders"), 0)
    house.gate.on("POST", answers(400, '{"reason":"no \\ud800 split"}'))
    with house.running():
        house.commit(split)
        assert house.end(split)["status"] == "rejected"
        wait_until(lambda: told(house) == [(split.decision_id, "rejected")])


def test_newest_decisions_are_of_last_evaluation(house: House):
    """The newest of each subject and action count."""
    one, two = house.decide(house.create("one", 4), 0), house.decide(house.create("two"), 0)
    merge = house.decide(one.subject, 0, 1)
    again, sibling = house.decide(one.subject, 2), house.decide(one.subject, 3)
    house.commit(one, merge, two)
    house.commit(again, sibling, decided_at=utc_now() + timedelta(minutes=1))
    house.commit(one)
    newest = follow_decisions(house.lake).newest_values("family", "subject", "action")
    assert sorted(newest) == sorted(each.decision_id for each in (again, sibling, merge, two))


@pytest.mark.parametrize("status", ["applied", "superseded"], ids=["own", "of another lake"])
def test_restart_announces_unrecorded_outcomes(house: House, status):
    topic = house.create("orders", 4)
    older, newest = ([house.decide(topic, segment) for segment in range(first, first + 2)] for first in (0, 2))
    with house.running():
        house.commit(*older)
        house.commit(*newest, decided_at=utc_now() + timedelta(minutes=1))
        ids = {house.end(one)["decision_id"] for one in older + newest}
    heard = older[1].decision_id
    Job(house.lake).takes_in(an_end(heard, status), datetime.now(timezone.utc))
    house.published.events.clear()
    expected = ids - {heard} if status == "applied" else ids
    with house.running():
        assert sorted(one for one, _ in told(house)) == sorted(expected)


def test_late_restart_announces_newest_evaluation(house: House):
    topic, clock = house.create("orders", 4), Clock()
    first = [house.decide(topic, segment) for segment in (0, 1)]
    with house.running(clock):
        house.commit(*first)
        ends = [house.end(one) for one in first]
        second = [house.decide(topic, segment) for segment in (2, 3)]
        house.commit(*second, decided_at=utc_now() + timedelta(minutes=1))
        ends += [house.end(one) for one in second]
    assert {end["status"] for end in ends} == {"applied"}
    house.published.events.clear()
    clock.now += timedelta(days=30)
    with house.running(clock):
        assert sorted(told(house)) == sorted((one.decision_id, "applied") for one in second)


class Job:
    """A job that takes in outcomes, or does without one."""

    def __init__(self, lake: str) -> None:
        self._lake, self._number = lake, 0
        create_table(lake, EVENTS)

    def takes_in(self, end: RecordedEnd | None, at: datetime | None = None) -> None:
        """A batch with the outcome in it, or with a tick only."""
        self._number += 1
        at, body = at or Clock().now, {"v": 1, "at": 1}
        if end is not None:
            body |= {"type": "outcome", "decisionId": end.decision_id, "topic": end.subject, "status": end.status}
        write(
            self._lake,
            EventRow(
                subject=end.subject if end else "*",
                type="outcome" if end else "tick",
                cause=None,
                body=json.dumps(body),
                at=at,
                kafka_topic="control-events",
                kafka_partition=0,
                kafka_offset=self._number,
                kafka_timestamp=at,
                accepted_at=at,
                batch_id=self._number,
                day=at.date(),
            ),
        )


@pytest.fixture
def job(tmp_path):
    return Job(str(tmp_path))


class Waiting:
    """An announcer with a clock that the test moves."""

    def __init__(self, lake: str) -> None:
        self.published, self.now = Collected(), 0.0
        tail = Tail(lake, EVENTS, ("subject", "body"), backlog=0, where="type = 'outcome'")
        self.announcer = Announcer(self.published, tail, lambda: self.now)
        self.announcer.open()

    def told_after(self, seconds: float) -> int:
        self.now += seconds
        self.announcer.poll()
        return len(self.published.events)


def an_end(decision_id: str = "d1", status: str = "failed") -> RecordedEnd:
    return RecordedEnd(decision_id, "autoscale", TOPIC, status, None, Clock().now)


def test_recorded_outcome_announced_once(job, tmp_path):
    waiting = Waiting(str(tmp_path))
    waiting.announcer.announce(an_end())
    job.takes_in(an_end())
    assert [waiting.told_after(LOOK_SECONDS) for _ in range(3)] == [1, 1, 1]
    assert not waiting.announcer.waiting


def test_lost_outcome_repeated_with_back_off(job, tmp_path):
    """The repetition ends when the job has recorded it."""
    waiting = Waiting(str(tmp_path))
    waiting.announcer.announce(an_end())
    told = []
    for _ in range(8):
        job.takes_in(None)
        told.append(waiting.told_after(LOOK_SECONDS))
    assert told == [2, 2, 3, 3, 3, 3, 4, 4]
    job.takes_in(an_end())
    assert waiting.told_after(LOOK_SECONDS) == 4
    job.takes_in(None)
    assert waiting.told_after(MAX_LOOK_SECONDS) == 4


def test_end_of_another_lake_does_not_stand_for_the_own(job, tmp_path):
    waiting = Waiting(str(tmp_path))
    waiting.announcer.announce(an_end())
    job.takes_in(an_end(status="applied"))
    assert waiting.told_after(LOOK_SECONDS) == 2
    job.takes_in(an_end())
    waiting.told_after(LOOK_SECONDS)
    assert not waiting.announcer.waiting


def test_lost_outcome_repeated_once_an_hour_at_last(job, tmp_path):
    waiting, told = Waiting(str(tmp_path)), []
    waiting.announcer.announce(an_end())
    for _ in range(12):
        job.takes_in(None)
        told.append(waiting.told_after(MAX_LOOK_SECONDS))
    assert told == list(range(2, 14))


def test_lost_outcomes_of_a_topic_announced_separately(job, tmp_path):
    waiting = Waiting(str(tmp_path))
    for name in ("d1", "d2", "d3"):
        waiting.announcer.announce(an_end(name))
    job.takes_in(an_end("d3"))
    waiting.told_after(LOOK_SECONDS)
    assert waiting.announcer.waiting == 2
    waiting.published.events.clear()
    job.takes_in(None)
    waiting.told_after(2 * LOOK_SECONDS)
    assert [event.decision_id for event in waiting.published.events] == ["d1", "d2"]
    for name in ("d1", "d2"):
        job.takes_in(an_end(name))
    waiting.told_after(LOOK_SECONDS)
    assert not waiting.announcer.waiting


def test_no_repetition_while_no_job_records(job, tmp_path):
    waiting = Waiting(str(tmp_path))
    waiting.announcer.announce(an_end())
    assert [waiting.told_after(LOOK_SECONDS) for _ in range(3)] == [1, 1, 1]
    job.takes_in(None)
    assert waiting.told_after(LOOK_SECONDS) == 2


def test_unreadable_lake_stops_no_announcement(tmp_path):
    (tmp_path / "events" / "_delta_log").mkdir(parents=True)
    (tmp_path / "events" / "_delta_log" / f"{0:020}.json").write_text("{broken")
    waiting = Waiting(str(tmp_path))
    waiting.announcer.announce(an_end())
    assert waiting.told_after(LOOK_SECONDS) == 1
