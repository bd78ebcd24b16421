"""Consumer sessions at a real controller: assignments pushed, lost connections, goodbyes, restarts, draining.

Longer than other files: all tests speak as the same client, with the same way to start a controller, made here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import group_id, kafka_topic
from anabranch.controller.segments.no_segments import NoSegments
from schemas.kafka.messages import ConsumerEvent
from tests.controller.conftest import LIFE, RunningController, run_controller
from tests.controller.processes import ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.process

TOPIC = "topic://acme/sessions/t"
PATH = "/admin/v2/scalable/acme/sessions/t"
BRIEF, LONG = 0.3, 600.0
"""Grace periods: one that ends within a test, and one that does not."""


class Client:
    """One connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps(message))

    def register(self, id: int, consumer: str, subscription: str = "s", type: str = "STREAM") -> None:
        self.send(command="register", consumerId=id, consumerName=consumer, subscription=subscription, type=type)

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.connection.recv(30))
        return found

    def assigned(self) -> tuple[int, list[int]]:
        """The next message, an assignment: the consumer's id and the segments'."""
        message = self.next()
        assert message["command"] == "assignment", message
        segments = message["assignment"]["assignedSegments"]
        return message["consumerId"], [segment["segmentId"] for segment in segments]

    def assigned_until(self, segments: list[int]) -> None:
        while self.assigned()[1] != segments:
            pass


@contextmanager
def client(controller: RunningController, path: str = PATH, **named: Any) -> Iterator[Client]:
    with connect(f"{controller.url}{path}/consumers".replace("http", "ws", 1), open_timeout=30, **named) as connection:
        yield Client(connection)


@contextmanager
def controller(folder: Path, grace: float = LONG, **named: Any) -> Iterator[RunningController]:
    with run_controller(folder / "layouts.db", grace_seconds=grace, **named) as running:
        yield running


def consumers(running: RunningController, subscription: str = "s") -> int:
    found: int = running.client.get(f"{PATH}/stats").json()["subscriptions"][subscription]["consumerCount"]
    return found


def events(running: RunningController) -> list[tuple[str, str | None, int]]:
    announced = [event for event in running.announced(TOPIC) if isinstance(event, ConsumerEvent)]
    return [(event.event, event.consumer, event.consumers) for event in announced]


def test_joining_consumer_changes_others_minimally(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one, client(running) as two:
        running.client.put(f"{PATH}?numInitialSegments=4")
        one.register(1, "a")
        assert one.assigned() == (1, [0, 1, 2, 3])
        two.register(1, "b")
        assert two.assigned() == (1, [1, 3])
        assert one.assigned() == (1, [0, 2])
        one.register(1, "a")
        assert one.assigned() == (1, [0, 2])
        two.send(command="leave", consumerId=1)
        assert one.assigned() == (1, [0, 1, 2, 3])
        assert events(running) == [("registered", "a", 1), ("registered", "b", 2), ("unregistered", "b", 1)]


def test_an_assignment_names_epoch_ranges_and_topics(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(f"{PATH}?numInitialSegments=2")
        one.register(7, "a")
        assert one.next() == {
            "command": "assignment",
            "consumerId": 7,
            "assignment": {
                "layoutEpoch": 0,
                "assignedSegments": [
                    {
                        "segmentId": 0,
                        "hashRange": {"start": 0, "end": 0x7FFF},
                        "underlyingTopicName": "segment://acme/sessions/t/0000-7fff-0",
                    },
                    {
                        "segmentId": 1,
                        "hashRange": {"start": 0x8000, "end": 0xFFFF},
                        "underlyingTopicName": "segment://acme/sessions/t/8000-ffff-1",
                    },
                ],
                "topicCreatedAt": LIFE,
            },
        }
        asked = running.client.get(f"{PATH}/subscriptions/s/consumers/a").json()
        assert asked["layoutEpoch"] == 0
        assert len(asked["assignedSegments"]) == 2


def test_lost_connection_keeps_segments_for_grace(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(f"{PATH}?numInitialSegments=2")
        one.register(1, "a")
        one.assigned()
        with client(running) as two:
            two.register(1, "b")
            two.assigned()
            one.assigned()
        with client(running) as back:
            back.register(9, "b")
            assert back.assigned() == (9, [1])
            one.register(1, "a")
            assert one.assigned() == (1, [0])
        assert events(running) == [("registered", "a", 1), ("registered", "b", 2)]


def test_disconnect_during_registration_keeps_segments(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as two:
        running.client.put(f"{PATH}?numInitialSegments=2")
        sessions = running.server.config.app.state.connections.sessions
        register, stored, goes_on = running.node.registry.add_consumer, threading.Event(), threading.Event()

        def slowly(*named: Any, **more: Any) -> bool:
            is_new = register(*named, **more)
            stored.set()
            goes_on.wait(30)
            return is_new

        with client(running) as one:
            one.register(1, "a")
            assert one.assigned() == (1, [0, 1])
            running.node.registry.add_consumer = slowly  # type: ignore[method-assign]
            two.register(1, "b")
            assert stored.wait(10)
        wait_until(lambda: sessions._lost_connections)
        goes_on.set()
        assert two.assigned() == (1, []), "a reads on what it was told"
        running.node.registry.add_consumer = register  # type: ignore[method-assign]
        with client(running) as back:
            back.register(1, "a")
            assert back.assigned() == (1, [0])
            assert two.assigned() == (1, [1])


def test_absent_consumer_evicted_and_replaced(tmp_path: Path) -> None:
    with controller(tmp_path, BRIEF) as running, client(running) as one:
        running.client.put(f"{PATH}?numInitialSegments=2")
        one.register(1, "a")
        one.assigned()
        with client(running) as two:
            two.register(1, "b")
            two.assigned()
            one.assigned()
        assert one.assigned() == (1, [0, 1])
        assert consumers(running) == 1
        assert events(running)[-1] == ("unregistered", "b", 1)


def test_late_goodbye_spares_new_connection(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as old, client(running) as new:
        running.client.put(PATH)
        old.register(1, "a")
        old.assigned()
        new.register(1, "a")
        assert new.assigned() == (1, [0])
        assert old.next() == {"command": "closed", "consumerId": 1, "reason": "the consumer connected again"}
        old.send(command="leave", consumerId=1)
        old.register(2, "b")
        assert old.assigned() == (2, [])
        assert consumers(running) == 2


def test_mass_join_gives_each_segment_one_owner(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one, client(running) as two:
        running.client.put(f"{PATH}?numInitialSegments=64")
        held: dict[tuple[int, int], list[int]] = {}
        for id in range(25):
            one.register(id, f"a{id}")
            two.register(id, f"b{id}")

        def held_now() -> list[int]:
            for number, each in enumerate((one, two)):
                each.send(command="answer me")
                while (message := each.next())["command"] == "assignment":
                    segments = message["assignment"]["assignedSegments"]
                    held[number, message["consumerId"]] = [segment["segmentId"] for segment in segments]
            return sorted(id for segments in held.values() for id in segments)

        wait_until(lambda: held_now() == list(range(64)) and len(held) == 50)


def test_a_split_is_pushed_to_those_whom_it_concerns(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(PATH)
        one.register(1, "a")
        one.register(2, "k", "check", "CHECKPOINT")
        assert one.assigned() == (1, [0])
        assert one.assigned() == (2, [0])
        running.client.post(f"{PATH}/split/0")
        seen: dict[int, list[int]] = {}
        while seen != {1: [1, 2], 2: [1, 0, 2]}:
            seen.update([one.assigned()])


class Backlog(NoSegments):
    """Segments whose backlog the test sets: real ones are in test_segments_kafka."""

    def __init__(self) -> None:
        self.left = 1

    def backlog(self, segment: str, subscription: str) -> int:
        return self.left if segment.endswith("-0") else 0


def test_children_assigned_after_parent_drained(tmp_path: Path) -> None:
    """The assignment survives a restart."""
    segments = Backlog()
    with controller(tmp_path, segments=segments) as running, client(running) as one:
        running.client.put(PATH)
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        running.client.post(f"{PATH}/split/0")
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        segments.left = 0
        one.assigned_until([1, 2])
    segments.left = 1
    with controller(tmp_path, segments=segments) as running, client(running) as one:
        one.register(1, "a")
        assert one.assigned() == (1, [1, 2])


class SlowBacklog(Backlog):
    """One whose first answer about a sealed segment comes when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.times = 0

    def backlog(self, segment: str, subscription: str) -> int:
        left = super().backlog(segment, subscription)
        self.times += 1
        self.asked.set()
        assert self.go_on.wait(30)
        return left


def test_new_subscription_ignores_earlier_progress(tmp_path: Path) -> None:
    segments = SlowBacklog()
    with controller(tmp_path, segments=segments) as running, client(running) as one:
        running.client.put(PATH)
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        segments.left = 0
        running.client.post(f"{PATH}/split/0")
        assert segments.asked.wait(30)
        segments.left = 1
        assert running.client.delete(f"{PATH}/subscriptions/s").status_code == 204
        assert one.next()["command"] == "closed"
        one.register(2, "a")
        assert one.assigned() == (2, [0])
        segments.go_on.set()
        wait_until(lambda: segments.times > 1)
        record = running.store.subscription_record(TOPIC, "s")
        assert record is not None
        assert record.drained == ()
        one.register(2, "a")
        assert one.assigned() == (2, [0])


@pytest.mark.broker
def test_kafka_children_wait_for_committed_end(kafka: str, kafka_segments: KafkaSegments, tmp_path: Path) -> None:
    with controller(tmp_path, segments=kafka_segments) as running, client(running) as one:
        assert running.client.put(PATH).status_code == 204
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        parent = "segment://acme/sessions/t/0000-ffff-0"
        producer = Producer({"bootstrap.servers": kafka})
        for number in range(3):
            producer.produce(kafka_topic(parent, LIFE), str(number).encode())
        assert producer.flush(30) == 0
        assert running.client.post(f"{PATH}/split/0").status_code == 204
        one.register(1, "a")
        assert one.assigned() == (1, [0])
        reader = Consumer({"bootstrap.servers": kafka, "group.id": group_id(parent, "s", LIFE)})
        reader.commit(offsets=[TopicPartition(kafka_topic(parent, LIFE), 0, 3)], asynchronous=False)
        reader.close()
        one.assigned_until([1, 2])
        assert running.client.delete(PATH).status_code == 204


def test_killed_controller_recovers_consumers(tmp_path: Path) -> None:
    with ControllerProcess(tmp_path).life() as (admin, process):
        admin.put(f"{PATH}?numInitialSegments=2")
        url = str(admin.base_url).replace("http", "ws", 1).rstrip("/")
        with connect(f"{url}{PATH}/consumers", open_timeout=30) as first:
            one = Client(first)
            for id, name in enumerate("ab"):
                one.register(id, name)
            one.assigned_until([1])
            process.kill()
            process.wait(30)
    with controller(tmp_path) as running, client(running) as one:
        one.register(5, "b")
        assert one.assigned() == (5, [1])
        assert events(running) == [("registered", "a", 1), ("registered", "b", 2)]


def test_restart_grants_grace_then_evicts(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(f"{PATH}?numInitialSegments=2")
        running.client.put(f"{PATH}/subscriptions/s/consumers/by-rest")
        for id, name in enumerate("ab"):
            one.register(id, name)
        wait_until(lambda: consumers(running) == 3)
    with controller(tmp_path, BRIEF) as running, client(running) as one:
        one.register(1, "b")
        wait_until(lambda: ("unregistered", "a") in [event[:2] for event in events(running)])
        one.assigned_until([0])
        assert running.client.get(f"{PATH}/subscriptions/s/consumers/by-rest").json()["assignedSegments"] != []


def test_rest_consumers_counted_and_pushed(tmp_path: Path) -> None:
    with controller(tmp_path, BRIEF) as running, client(running) as one:
        running.client.put(f"{PATH}?numInitialSegments=2")
        one.register(1, "b")
        assert one.assigned() == (1, [0, 1])
        running.client.put(f"{PATH}/subscriptions/s/consumers/a")
        assert one.assigned() == (1, [1])
        running.client.delete(f"{PATH}/subscriptions/s/consumers/a")
        assert one.assigned() == (1, [0, 1])
        running.client.delete(f"{PATH}/subscriptions/s/consumers/b")
        assert one.next() == {"command": "closed", "consumerId": 1, "reason": "the consumer was unregistered"}


def test_consumer_told_of_deletion(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(PATH)
        for id, subscription in enumerate("st"):
            one.register(id, "a", subscription)
            one.assigned()
        running.client.delete(f"{PATH}/subscriptions/t")
        assert (one.next()["consumerId"], consumers(running)) == (1, 1)
        running.client.delete(PATH)
        message = one.next()
        assert (message["command"], message["consumerId"], "not found" in message["reason"]) == ("closed", 0, True)


WRONG: dict[str | bytes | tuple[bytes, ...], int] = {
    "no json": 400,
    b'{"command": "leave", "consumerId": 0}': 400,
    b"": 400,
    (b"a message in ", b"two frames"): 400,
    '{"command": "dance"}': 400,
    '{"command": "register", "consumerId": -1, "subscription": "s", "consumerName": "a"}': 400,
    '{"command": "register", "consumerId": 1, "subscription": "s", "consumerName": "a", "type": "QUEUE"}': 409,
    '{"command": "register", "consumerId": 0, "subscription": "s", "consumerName": "b"}': 409,
}
"""Messages and their answers; bytes are sent as binary ones."""


def test_impossible_command_keeps_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(PATH)
        one.register(0, "first")
        one.assigned()
        for message, status in WRONG.items():
            one.connection.send(message)
            answer = one.next()
            assert (answer["command"], answer["status"]) == ("error", status)
            one.register(0, "first")
            assert one.assigned() == (0, [0])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_consumer_of_an_unknown_topic_is_404(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        one.register(1, "a")
        assert one.next()["status"] == 404
        assert running.client.get(f"{PATH}/subscriptions/s/consumers/a").status_code == 404


def test_stop_closes_connections_not_registrations(tmp_path: Path) -> None:
    with controller(tmp_path) as running, client(running) as one:
        running.client.put(PATH)
        one.register(1, "a")
        one.assigned()
        running.stop()
        with pytest.raises(ConnectionClosed) as closed:
            one.connection.recv(30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    with controller(tmp_path) as again:
        assert consumers(again) == 1
