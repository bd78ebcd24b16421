"""From the outbox to a real broker: everything, in order, and the truth again and again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from anabranch.controller.outbox.entries import StoredOutbox
from anabranch.controller.publishing import publisher
from anabranch.controller.publishing.snapshots import SnapshotPage, Snapshots
from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import Jars
from schemas.kafka.messages import ConsumerEvent, LayoutEvent
from tests.controller.conftest import NOWHERE, RunningController, run_controller
from tests.controller.listening import Listener
from tests.runtime.messaging.fatal import fail_for_good
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def listener(kafka: str, request: pytest.FixtureRequest) -> Iterator[Listener]:
    opened = Listener(kafka, f"topic://acme/{request.node.name}/")
    yield opened
    opened.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"topic://acme/{request.node.name}/t"


def path_of(topic: str) -> str:
    return f"/admin/v2/scalable/{topic.removeprefix('topic://')}"


def outbox_of(controller: RunningController) -> int:
    return controller.publisher.waiting()


def finish_first_round(controller: RunningController) -> None:
    """Wait for the round of snapshots at the start: what is made before it is announced by it, too."""
    wait_until(lambda: controller.publisher._snapshots.due_in() > 0)


def test_change_announced_once_and_leaves_outbox(kafka: str, listener: Listener, topic: str, tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", kafka) as controller:
        finish_first_round(controller)
        controller.client.put(path_of(topic))
        for segment in range(30):
            assert controller.client.post(f"{path_of(topic)}/split/{segment}").status_code == 204
            controller.client.put(f"{path_of(topic)}/subscriptions/s/consumers/c{segment}")
        wait_until(lambda: outbox_of(controller) == 0)
        assert controller.client.get("/healthz").json() == {"status": "ok", "outbox": 0, "reason": None}
        listener.read_until(lambda: len(listener.messages) == 61)
        assert [event.layout.epoch for event in listener.layouts(topic)] == list(range(31))
        assert [event.consumers for event in listener.sessions(topic)] == list(range(1, 31))


def test_failed_producer_replaced_without_loss(
    kafka: str, listener: Listener, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Producer] = []

    def recorded(configuration: dict[str, object]) -> Producer:
        made.append(Producer(configuration))
        return made[-1]

    monkeypatch.setattr(publisher, "Producer", recorded)
    with run_controller(tmp_path / "layouts.db", kafka) as controller:
        finish_first_round(controller)
        controller.client.put(path_of(topic))
        listener.read_until(lambda: len(listener.messages) == 1)
        fail_for_good(made[-1])
        controller.client.post(f"{path_of(topic)}/split/0")
        wait_until(lambda: outbox_of(controller) == 0)
        listener.read_until(lambda: [event.layout.epoch for event in listener.layouts(topic)][-1] == 1)
    assert len(made) > 1


def test_snapshots_never_announce_older_state(kafka: str, listener: Listener, topic: str, tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", kafka, snapshot_seconds=0.001) as controller:
        controller.client.put(path_of(topic))
        for number in range(100):
            controller.client.put(f"{path_of(topic)}/subscriptions/s/consumers/c{number}")
        controller.client.post(f"{path_of(topic)}/split/0")
        listener.read_until(lambda: listener.epoch(topic) == 1 and listener.sessions(topic)[-1].consumers == 100)
    counts = [event.consumers for event in listener.sessions(topic)]
    assert "snapshot" in {event.event for event in listener.sessions(topic)}
    assert counts == sorted(counts)
    assert [e.consumers for e in listener.sessions(topic) if e.event == "registered"] == list(range(1, 101))
    epochs = [event.layout.epoch for event in listener.layouts(topic)]
    assert epochs == sorted(epochs)


def test_changes_during_page_read_announced_alone(
    kafka: str, listener: Listener, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page leaves them out."""
    read_page, numbers = Snapshots.next_page, iter(range(100))
    with run_controller(tmp_path / "layouts.db", kafka, snapshot_seconds=0.001) as controller:
        controller.client.put(path_of(topic))

        def change_twice_and_read(snapshots: Snapshots) -> SnapshotPage | None:
            for number in itertools.islice(numbers, 2):
                controller.client.put(f"{path_of(topic)}/subscriptions/s/consumers/c{number}")
            return read_page(snapshots)

        monkeypatch.setattr(Snapshots, "next_page", change_twice_and_read)
        listener.read_until(lambda: len(listener.sessions(topic)) > 0 and listener.sessions(topic)[-1].consumers == 100)
    sessions = listener.sessions(topic)
    assert [event.consumers for event in sessions if event.event == "registered"] == list(range(1, 101))
    counts = [event.consumers for event in sessions]
    assert counts == sorted(counts)


def test_start_repeats_all_announcements(kafka: str, listener: Listener, topic: str, tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", kafka) as controller:
        finish_first_round(controller)
        for number in range(120):
            controller.client.put(f"{path_of(topic)}{number}")
        controller.client.put(f"{path_of(topic)}7/subscriptions/s/consumers/c")
        listener.read_until(lambda: len(listener.messages) == 121)
    with run_controller(tmp_path / "layouts.db", kafka):
        listener.read_until(lambda: len(listener.messages) == 242)
    again = listener.messages[121:]
    assert {event.topic for event in again if hasattr(event, "cause") and event.cause == "snapshot"} == {
        f"{topic}{number}" for number in range(120)
    }
    assert [(e.event, e.consumers) for e in listener.sessions(f"{topic}7")] == [("registered", 1), ("snapshot", 1)]
    senders = [
        message.sender or 0 for message in listener.messages if isinstance(message, (LayoutEvent, ConsumerEvent))
    ]
    first, second = set(senders[:121]), set(senders[121:])
    assert len(first) == len(second) == 1
    assert max(first) < min(second), "the next sender has a higher number, so that late messages are known as late"


def test_changes_announced_when_kafka_returns(kafka: str, listener: Listener, topic: str, tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", NOWHERE) as controller:
        controller.client.put(path_of(topic))
        controller.client.post(f"{path_of(topic)}/split/0", headers={"X-Anabranch-Decision": "d-1"})
        controller.client.delete(path_of(topic))
        assert outbox_of(controller) == 3
    with run_controller(tmp_path / "layouts.db", kafka) as controller:
        listener.read_until(lambda: len(listener.messages) == 3)
        wait_until(lambda: outbox_of(controller) == 0)
    seen = [(event.cause, event.layout.epoch, event.decision_id) for event in listener.layouts(topic)]
    assert seen == [("created", 0, None), ("split", 1, "d-1"), ("deleted", 1, None)]


def test_waiting_outbox_is_seldom_listed(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()

    class Polled(Producer):
        def poll(self, timeout: float) -> int:
            calls["poll"] += 1
            return super().poll(timeout)

    def names(outbox: StoredOutbox, after: str = "") -> list[str]:
        calls["list"] += 1
        return listed(outbox, after)

    listed = StoredOutbox.names
    monkeypatch.setattr(publisher, "Producer", Polled)
    monkeypatch.setattr(StoredOutbox, "names", names)
    with run_controller(tmp_path / "layouts.db", NOWHERE) as controller:
        controller.client.put(path_of(topic))
        wait_until(lambda: len(controller.publisher._in_flight) > 0)
        finish_first_round(controller)
        before = Counter(calls)
        wait_until(lambda: calls["poll"] >= before["poll"] + 100)
        assert calls["list"] - before["list"] < 20


def test_returning_broker_gets_everything(jars: Jars, topic: str, tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    broker.start()
    try:
        create_topics(broker.connection)
        with run_controller(tmp_path / "layouts.db", broker.bootstrap) as controller:
            controller.client.put(path_of(topic))
            wait_until(lambda: outbox_of(controller) == 0)
            broker.stop()
            for segment in range(20):
                assert controller.client.post(f"{path_of(topic)}/split/{segment}").status_code == 204
            wait_until(lambda: controller.client.get("/healthz").status_code == 503)
            assert outbox_of(controller) == 20
            broker.start()
            wait_until(lambda: outbox_of(controller) == 0, 30)
            assert controller.client.get("/healthz").status_code == 200
        listener = Listener(broker.bootstrap, topic)
        listener.read_until(lambda: listener.epoch(topic) == 20)
        listener.close()
    finally:
        broker.stop()
    changes = [event.layout.epoch for event in listener.layouts(topic) if event.cause != "snapshot"]
    assert list(dict.fromkeys(changes)) == list(range(21))


def test_missing_kafka_topics_named_until_created(jars: Jars, topic: str, tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    broker.start()
    try:
        with run_controller(tmp_path / "layouts.db", broker.bootstrap) as controller:
            wait_until(lambda: "no topic control-events" in str(controller.publisher.status().error))
            controller.client.put(path_of(topic))
            create_topics(broker.connection)
            wait_until(lambda: outbox_of(controller) == 0, 30)
            assert controller.publisher.status() == (True, None)
    finally:
        broker.stop()
