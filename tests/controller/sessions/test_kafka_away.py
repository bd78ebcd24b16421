"""Kafka stopped for real: watches, registrations and housekeeping answer as before, and all goes on when it is back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from anabranch.controller.housekeeping import housekeeper
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.local.broker import EmbeddedBroker
from anabranch.local.setup import Jars
from tests.controller.conftest import LIFE, RunningController
from tests.controller.segments.test_segments_kafka import acknowledge, write
from tests.controller.sessions.test_connections import PATH, TOPIC, client, controller
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

PARENT = "segment://acme/sessions/t/0000-ffff-0"
NAMES = [f"s{number}" for number in range(6)]
MAX_SECONDS = 2.5
"""Longest answer that is as before: on a busy machine, with a second of patience in it."""


@pytest.fixture
def stopped(jars: Jars, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may stop."""
    one = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    one.start()
    try:
        yield one
    finally:
        assert one.process is not None
        os.kill(one.process.pid, signal.SIGCONT)
        one.stop()


class Slowest:
    """The longest time that each kind of work took, seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], object]) -> None:
        began = time.monotonic()
        work()
        self.seconds[name] = max(self.seconds.get(name, 0.0), time.monotonic() - began)


def test_kafka_outage_leaves_rest_calls_unaffected(
    stopped: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six subscriptions are undrained meanwhile."""
    monkeypatch.setattr(housekeeper, "ROUND_SECONDS", 0.2)
    segments, kafka = KafkaSegments(stopped.connection, timeout_seconds=3), stopped.bootstrap
    with (
        controller(tmp_path, segments=segments, retention_seconds=0, prune_seconds=0.1) as running,
        client(running) as one,
    ):
        assert running.client.put(PATH).status_code == 204
        for id, name in enumerate(NAMES):
            one.register(id, "a", name)
            assert one.assigned() == (id, [0])
        write(kafka, PARENT, [b"x"], life=LIFE)
        assert running.client.post(f"{PATH}/split/0").status_code == 204
        slowest, rounds = Slowest(), count_rounds(running, monkeypatch)
        with connect(f"{running.url}{PATH}/watch".replace("http", "ws", 1), open_timeout=30) as watching:
            watching.recv(30)
            assert stopped.process is not None
            os.kill(stopped.process.pid, signal.SIGSTOP)
            asked = threading.Thread(target=running.client.delete, args=[f"{PATH}/subscriptions/{NAMES[0]}x"])
            asked.start()
            until, number = time.monotonic() + 30, 0
            while not (running.node.reach.is_away and number > 3) and time.monotonic() < until:
                number += 1
                at = len(rounds)
                policy = {"maxSegments": 10 + number}
                slowest.time("policy", lambda p=policy: running.client.post(f"{PATH}/autoScalePolicy", json=p))  # type: ignore[misc]
                slowest.time("watch", lambda: watching.recv(30))
                slowest.time("layout", lambda: running.client.get(PATH))
                slowest.time("register", lambda n=number: register(running, f"b{n}"))  # type: ignore[misc]
                slowest.time("rest", lambda n=number: put(running, f"c{n}"))  # type: ignore[misc]
                slowest.time("housekeeping", lambda at=at: wait_until(lambda: len(rounds) > at + 1, 30))  # type: ignore[misc]
            asked.join(60)
        assert running.node.reach.is_away
        assert max(slowest.seconds.values()) < MAX_SECONDS, slowest.seconds
        refused = running.client.put(f"{PATH}/subscriptions/new")
        assert refused.status_code == 503
        assert "check that Kafka runs" in refused.json()["reason"]
        os.kill(stopped.process.pid, signal.SIGCONT)
        for name in NAMES:
            acknowledge(kafka, PARENT, name, 1, LIFE)
        wait_until(lambda: drained(running) == NAMES, 30)
        wait_until(lambda: "new" in running.segments(TOPIC).subscriptions(PARENT), 30)


def count_rounds(running: RunningController, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each round of the housekeeping came to its end."""
    rounds: list[float] = []
    release = running.node.failover.release_idle

    def counted(*arguments: object) -> None:
        release(*arguments)  # type: ignore[arg-type]
        rounds.append(time.monotonic())

    monkeypatch.setattr(running.node.failover, "release_idle", counted)
    return rounds


def register(running: RunningController, consumer: str) -> None:
    """A consumer of a known subscription comes, hears what it has to read, and leaves."""
    with client(running) as one:
        one.register(1, consumer, NAMES[0])
        one.assigned()
        one.send(command="leave", consumerId=1)


def put(running: RunningController, consumer: str) -> None:
    assert running.client.put(f"{PATH}/subscriptions/{NAMES[1]}/consumers/{consumer}").status_code == 204


def drained(running: RunningController) -> list[str]:
    """The subscriptions that are known to have read the parent."""
    records = running.store.subscription_records(TOPIC)
    return [name for name in NAMES if records[name].drained == (0,)]
