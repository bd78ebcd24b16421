"""Decisions that nobody applied in time, on the real loop, lake and controller: superseded, and never called for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from deltalake import write_deltalake

from anabranch.executor.kernel.loop import utc_now
from lake.tables import create_table
from schemas.kafka.messages import EXPIRED
from schemas.tables.rows import DECISIONS
from streaming.operator.rows import rare_rows
from tests.engine.buckets import Bucket
from tests.engine.records import layout, outcome, stats, tick
from tests.examples import only_first
from tests.executor.conftest import Clock, House
from tests.executor.gate import LOST_BEFORE
from tests.safeguards.test_brakes import say, waits
from tests.waiting import wait_until

LIMITS = {"decision_max_age_seconds": 300, "waiting_max_age_seconds": 3600}


def expired(house: House, split: Any) -> dict[str, Any]:
    """The end of a decision that has expired without a call, and is announced."""
    end = house.end(split)
    wait_until(lambda: [event.status for event in house.published.events] == ["superseded"])
    assert (end["status"], end["attempt"], end["error"][: len(EXPIRED)]) == ("superseded", 0, EXPIRED)
    assert [row["status"] for row in house.outcomes(split)] == ["superseded"]
    assert house.gate.count("POST") == 0
    return end


@pytest.mark.parametrize(
    ("ahead", "status"), only_first(2, [(-412, "superseded"), (301, "superseded"), (-299, "applied"), (299, "applied")])
)
def test_the_age_counts_when_the_executor_was_down(house: House, ahead: int, status: str):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    house.commit(split, decided_at=clock.now + timedelta(seconds=ahead))
    with house.running(clock, **LIMITS):
        if status == "superseded":
            end = expired(house, split)
            assert ahead > 0 or "decided 412 s ago" in end["error"]
        assert house.end(split)["status"] == status


def test_a_decision_that_stays_held_expires_by_itself(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    with house.running(clock, mode="approve", decision_max_age_seconds=1, waiting_max_age_seconds=1):
        house.commit(split, decided_at=clock.now)
        wait_until(lambda: waits(house))
        clock.now += timedelta(seconds=2)
        expired(house, split)


def test_late_end_of_pause_applies_nothing(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    say(house, "executor", "pause", "all")
    with house.running(clock, **LIMITS):
        house.commit(split, decided_at=clock.now)
        wait_until(lambda: waits(house))
        clock.now += timedelta(seconds=301)
        say(house, "executor", "resume", "all")
        expired(house, split)


def test_later_decision_replaces_earlier_on_segment(house: House):
    topic, clock = house.create("orders", segments=2), Clock()
    merge, split = house.decide(topic, 0, 1), house.decide(topic, 1)
    house.commit(merge, decided_at=clock.now - timedelta(seconds=20))
    house.commit(split, decided_at=clock.now)
    with house.running(clock, **LIMITS):
        assert house.end(split)["status"] == "applied"
        end = house.end(merge)
        assert (end["status"], end["attempt"]) == ("superseded", 0)
        assert end["error"].startswith("replaced by split 1 of ")
        wait_until(lambda: {event.status for event in house.published.events} == {"applied", "superseded"})
    assert [row["status"] for row in house.outcomes(merge)] == ["superseded"]
    assert house.gate.count("POST") == 1


def test_begun_decision_is_replaced_by_none(house: House):
    topic, clock = house.create("orders", segments=2), Clock()
    merge, split = house.decide(topic, 0, 1), house.decide(topic, 1)
    house.gate.always("POST", LOST_BEFORE)
    with house.running(clock, **LIMITS):
        house.commit(merge, decided_at=clock.now - timedelta(seconds=20))
        wait_until(lambda: house.gate.count("POST"))
    house.gate.heal()
    house.commit(split, decided_at=clock.now)
    with house.running(clock, **LIMITS):
        assert house.end(merge)["status"] == "applied"
        assert house.end(split)["status"] == "superseded"


def test_a_begun_decision_is_finished_however_old(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    house.gate.always("POST", LOST_BEFORE)
    with house.running(clock, **LIMITS):
        house.commit(split, decided_at=clock.now)
        wait_until(lambda: house.gate.count("POST"))
    house.gate.heal()
    clock.now += timedelta(days=2)
    with house.running(clock, **LIMITS):
        assert house.end(split)["status"] == "applied"


def test_begun_decision_held_before_its_call_expires(house: House):
    """The pause begins while another decision on the topic has its turn."""
    topic, clock = house.create("orders", segments=2), Clock()
    first, second = house.decide(topic, 0), house.decide(topic, 1)
    with house.running(clock, **LIMITS) as executor:

        def pause() -> None:
            say(house, "executor", "pause", "all")
            wait_until(lambda: executor.brakes.standing().pauses)

        house.gate.before_next("POST", pause)
        house.commit(first, second, decided_at=clock.now)
        wait_until(lambda: waits(house))
        clock.now += timedelta(seconds=301)
        say(house, "executor", "resume", "all")
        ends = [house.end(first), house.end(second)]
    late = next(end for end in ends if end["status"] == "superseded")
    assert {end["status"] for end in ends} == {"applied", "superseded"}
    assert (late["attempt"], late["error"][: len(EXPIRED)]) == (0, EXPIRED)
    assert next(row["status"] for row in house.outcomes() if row["decision_id"] == late["decision_id"]) == "intent"
    assert house.gate.count("POST") == 1


def test_the_age_is_asked_right_before_the_intent(house: House):
    split, clock = house.decide(house.create("orders"), 0), Clock()
    noon = clock.now
    with house.running(clock, **LIMITS) as executor:
        failed: list[datetime] = []
        append = executor._ledger.append

        def unreachable(rows: Any) -> None:
            failed.append(clock.now)
            if clock.now == noon:
                raise OSError("the lake is out of reach")
            append(rows)

        executor._ledger.append = unreachable  # type: ignore[method-assign]
        house.commit(split, decided_at=clock.now)
        wait_until(lambda: failed)
        clock.now += timedelta(seconds=301)
        expired(house, split)


def test_expired_decision_not_approved_names_successor(house: House):
    split = house.decide(house.create("orders"), 0)
    house.commit(split, decided_at=utc_now() - timedelta(hours=2))
    refused = say(house, "approve", split.decision_id)
    assert (refused.exit_code, "it has expired: decided 72" in refused.stderr) == (1, True)
    with house.running(mode="approve", **LIMITS):
        expired(house, split)
    house.commit(split, decision_id="later")
    refused = say(house, "approve", split.decision_id)
    assert "it has expired, at 20" in refused.stderr
    assert "UTC: decided 72" in refused.stderr
    assert f"decided on {split.subject} since then: later" in refused.stderr


def test_the_job_decides_again_and_that_is_applied(house: House):
    """The job's engine and the executor, both real; the executor was down for ten minutes."""
    topic, bucket = house.create("orders"), Bucket()
    now = int(utc_now().timestamp() * 1000)

    def evaluate(at: int, *more: Any) -> Any:
        output = bucket.batch(at, *more, stats({0: 90_000.0}, at, topic), tick(at))
        if output.decisions:
            rows = rare_rows(DECISIONS, [output.bodies()["decisions"]], at)
            write_deltalake(create_table(house.lake, DECISIONS), rows, mode="append")
        return [row["decision_id"] for row in output.decisions]

    (first,) = evaluate(now - 600_000, layout(house.layout(topic), at=now - 600_000, topic=topic))
    assert evaluate(now - 300_000) == []
    with house.running(**LIMITS):
        (event,) = wait_until(lambda: house.published.events)
        assert (event.decision_id, event.status, event.error[: len(EXPIRED)]) == (first, "superseded", EXPIRED)
        (second,) = evaluate(now, outcome(first, "superseded", now, topic))
        assert second != first
        wait_until(lambda: [row for row in house.ends() if row["decision_id"] == second])
    assert {row["decision_id"]: row["status"] for row in house.ends()} == {first: "superseded", second: "applied"}
    assert house.gate.count("POST") == 1
