"""kill -9 at every step, then a restart: what was begun is finished, nothing is done twice, nothing is forgotten."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest

from anabranch.executor.kernel import loop
from anabranch.executor.kernel.outcomes import RecordedEnd
from schemas.kafka.messages import OutcomeEvent
from tests.executor.conftest import House
from tests.executor.crashing_executor import POINTS
from tests.executor.gate import HANGS_AFTER
from tests.executor.test_known_decisions import Job
from tests.waiting import wait_until


@contextmanager
def started(house: House, folder: Path, point: str, more: str = "") -> Iterator[subprocess.Popen[str]]:
    """An executor as a process of its own, ended at the end of the block at the latest; `more` settings of it."""
    settings = folder / "executor.toml"
    mode = "" if "mode" in more else 'mode = "act"\n'
    settings.write_text(
        f'[lake]\npath = "{house.lake}"\n[controller]\nurl = "{house.gate.url}"\n[executor]\n{mode}{more}'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.executor.crashing_executor", str(settings), str(folder / "events"), point],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.parametrize("point", POINTS[:-1])
def test_killed_executor_finishes_after_restart(house: House, tmp_path: Path, point: str):
    split, merge = house.decide(house.create("split"), 0), house.decide(house.create("merge", 2), 0, 1)
    house.commit(split, merge)
    with started(house, tmp_path, point) as process:
        assert process.wait(60) == -signal.SIGKILL
    with house.running():
        for decided in (split, merge):
            assert house.end(decided)["status"] == "applied"
        announced = wait_until(lambda: len(house.published.events) >= 2 and house.published.events)

    for decided in (split, merge):
        assert house.layout(decided.subject).epoch == 1
        assert house.outcomes(decided)[0]["status"] == "intent"
        assert len(house.ends(decided)) == 1
    assert {(event.decision_id, event.status) for event in announced} == {
        (decided.decision_id, "applied") for decided in (split, merge)
    }
    assert house.gate.count("POST", "split") in (1, 2)


SHORT_LEASE = "lease_seconds = 6\nrequest_timeout_seconds = 3\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "most"), [(1, 3), pytest.param(2, 8, marks=pytest.mark.soak)])
def test_random_kills_apply_each_decision_once(house: House, tmp_path: Path, seed: int, most: int):
    """Each of at most `most` kills is followed by the wait for the dead one's lease."""
    chance, job, recorded, kills = random.Random(seed), Job(house.lake), set(), 0
    topics = [house.create(name, 8) for name in ("one", "two")]
    decided = [house.decide(topic, segment) for topic in topics for segment in range(8)]
    house.commit(*decided)
    read = 0
    while len(recorded) < len(decided):
        point = f"random-{chance.random()}" if kills < most else "never"
        with started(house, tmp_path, point, SHORT_LEASE) as process:
            while process.poll() is None and len(recorded) < len(decided):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.6)
                read = deliver(tmp_path / "events", read, chance, job, recorded)
        kills += process.returncode == -signal.SIGKILL
    assert kills >= 3
    for one in decided:
        assert [end["status"] for end in house.ends(one)] == ["applied"]
    for topic in topics:
        assert (house.layout(topic).epoch, len(house.layout(topic).active)) == (8, 16)


def deliver(events: Path, read: int, chance: random.Random, job: Job, recorded: set[str]) -> int:
    """Kafka loses half of the outcomes that were announced since line `read`, and the job records the others."""
    lines = events.read_text().splitlines() if events.exists() else []
    job.takes_in(None)
    for line in lines[read:]:
        event = OutcomeEvent.model_validate_json(line)
        if chance.random() < 0.5:
            at = datetime.now(timezone.utc)
            job.takes_in(RecordedEnd(event.decision_id, event.family, event.topic, event.status, None, at), at)
            recorded.add(event.decision_id)
    return len(lines)


def test_stopped_executor_hands_over_cleanly(house: House, tmp_path: Path):
    first, second = house.decide(house.create("first"), 0), house.decide(house.create("second"), 0)
    house.commit(first)
    with started(house, tmp_path, "never") as process:
        assert process.stdout is not None
        assert "executor ready: mode act, shards 0 of 1, 1 open decisions" in process.stdout.readline()
        assert house.end(first)["status"] == "applied"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    [line] = (tmp_path / "events").read_text().splitlines()
    assert OutcomeEvent.model_validate_json(line).decision_id == first.decision_id
    house.commit(second)
    with house.running():
        assert house.end(second)["status"] == "applied"


def test_call_in_flight_finished_at_stop(house: House):
    topic = house.create("orders")
    split = house.decide(topic, 0)
    with house.running() as executor:
        actor = executor._actors["autoscale"]
        call = actor.call

        def stop_after(decision, *given):
            answer = call(decision, *given)
            executor.stop()
            return answer

        actor.call = stop_after
        house.commit(split)
        wait_until(executor._stopping.is_set)
    assert [row["status"] for row in house.outcomes(split)] == ["intent", "applied"]
    assert [event.status for event in house.published.events] == ["applied"]


def test_abandoned_call_pending_until_it_returns(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "STOP_SECONDS", 0.0)
    split = house.decide(house.create("orders"), 0)
    house.gate.on("POST", HANGS_AFTER)
    with house.running() as executor:
        house.commit(split)
        wait_until(lambda: house.gate.count("POST"))
        executor.stop()
        assert executor.has_calls_out
    wait_until(lambda: not executor.has_calls_out)
