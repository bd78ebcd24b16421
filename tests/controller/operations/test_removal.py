"""Deletions and prunings: killed at any point they are ended by the next leader, and announced once."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from anabranch.controller.layouts import transaction
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.node import Node
from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.no_segments import NoSegments
from schemas.kafka.messages import ConsumerEvent, LayoutEvent
from tests.controller.conftest import RunningController, run_controller
from tests.controller.operations.crash_points import DELETE_POINTS, PRUNE_POINTS, Crash, crash_at
from tests.controller.operations.test_operations import in_kafka, node_on
from tests.controller.processes import ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.process

TOPIC = "topic://acme/removal/t"
PATH = "/admin/v2/scalable/acme/removal/t"


def told(running: RunningController) -> list[tuple[str, ...]]:
    """What is announced of the topic's end, in order; all of it of one life."""
    events = [event for event in running.announced(TOPIC) if isinstance(event, (ConsumerEvent, LayoutEvent))]
    found = [
        ("deleted", event.subscription) if isinstance(event, ConsumerEvent) else (event.cause,)
        for event in events
        if (event.event if isinstance(event, ConsumerEvent) else event.cause) == "deleted"
    ]
    assert len({event.topic_created_at for event in events}) == 1
    return found


def leftovers(node: Node) -> list[str]:
    """What the metadata store still has of the topic."""
    top = "/topics/acme/removal/t"
    return [name for name in node.nodes.children(top) if name != "controller"]


@pytest.mark.broker
@pytest.mark.parametrize("point", DELETE_POINTS)
def test_stopped_deletion_finished_by_next_leader(
    point: str, kafka: str, kafka_segments: KafkaSegments, tmp_path: Path
) -> None:
    segments = kafka_segments
    with node_on(tmp_path / "before.db", segments) as node:
        node.service.create_topic(TOPIC, 2, {})
        node.service.split_segment(TOPIC, 0)
        for name in ("a", "b"):
            node.registry.create_subscription(TOPIC, name, "STREAM")
            node.registry.register_consumer(TOPIC, name, "c", "STREAM")
        with crash_at(point), pytest.raises(Crash):
            node.service.delete_topic(TOPIC)
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"before.db{suffix}", tmp_path / f"layouts.db{suffix}")
    with run_controller(tmp_path / "layouts.db", segments=segments) as next_one:
        assert next_one.client.get(PATH).status_code == 404
        wait_until(lambda: in_kafka(kafka, "acme/removal/t") == [] and not leftovers(next_one.node), 30)
        assert told(next_one) == [("deleted", "a"), ("deleted", "b"), ("deleted",)]
        assert next_one.client.delete(PATH).status_code == 404
        assert next_one.client.put(PATH).status_code == 204
        ((_, life),) = in_kafka(kafka, "acme/removal/t")
        assert life == next_one.life(TOPIC)
        assert next_one.client.delete(PATH).status_code == 204


@pytest.mark.broker
def test_killed_deletion_finished_after_restart(kafka: str, tmp_path: Path) -> None:
    service, path = ControllerProcess(tmp_path, "kafka", kafka), PATH.replace("/t", "/k")
    with service.life("removed") as (client, process):
        assert client.put(f"{path}?numInitialSegments=3").status_code == 204
        assert client.put(f"{path}/subscriptions/s/consumers/c").status_code == 204
        with pytest.raises(httpx.TransportError):
            client.delete(path)
        assert process.wait(30) == -signal.SIGKILL
    assert len(in_kafka(kafka, "acme/removal/k")) == 2
    with service.life() as (client, _):
        assert client.get(path).status_code == 404
        wait_until(lambda: in_kafka(kafka, "acme/removal/k") == [], 30)


@pytest.mark.broker
@pytest.mark.parametrize("point", PRUNE_POINTS)
def test_stopped_pruning_completes_announced_once(
    point: str, kafka: str, kafka_segments: KafkaSegments, tmp_path: Path
) -> None:
    segments = kafka_segments
    with node_on(tmp_path / "before.db", segments, retention_seconds=0) as node:
        node.service.create_topic(TOPIC, 1, {})
        node.service.split_segment(TOPIC, 0)
        with crash_at(point), pytest.raises(Crash):
            node.pruning.prune()
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"before.db{suffix}", tmp_path / f"layouts.db{suffix}")
    with run_controller(tmp_path / "layouts.db", segments=segments) as next_one:
        wait_until(lambda: len(in_kafka(kafka, "acme/removal/t")) == 2, 30)
        wait_until(lambda: next_one.client.get(f"{PATH}/operations").json()[0]["step"] == "done")
        assert sorted(next_one.client.get(PATH).json()["segments"]) == ["1", "2"]
        events = [event for event in next_one.announced(TOPIC) if isinstance(event, LayoutEvent)]
        assert [event.cause for event in events] == ["created", "split", "prune"]
        assert next_one.client.delete(PATH).status_code == 204


class Away(NoSegments):
    """Segments whose store can be cut off: the fault that no real store shows when asked to."""

    def __init__(self) -> None:
        self.is_away = False

    def answers(self) -> bool:
        return not self.is_away

    def delete(self, segment: str) -> None:
        if self.is_away:
            raise SegmentStoreError("no answer")


@pytest.fixture
def segments() -> Away:
    return Away()


@pytest.fixture
def running(segments: Away, tmp_path: Path) -> Iterator[RunningController]:
    with run_controller(tmp_path / "layouts.db", segments=segments) as one:
        yield one


def test_topic_being_deleted_is_404_then_recreatable(running: RunningController, segments: Away) -> None:
    client = running.client
    assert client.put(PATH).status_code == 204
    assert client.put(f"{PATH}/subscriptions/s").status_code == 204
    life = running.life(TOPIC)
    segments.is_away = True
    for _ in range(2):
        assert client.delete(PATH).status_code == 503
    for verb, path in [
        ("GET", ""),
        ("GET", "/stats"),
        ("GET", "/operations"),
        ("GET", "/autoScalePolicy"),
        ("POST", "/split/0"),
        ("PUT", "/subscriptions/s"),
        ("DELETE", "/subscriptions/s"),
        ("PUT", "/subscriptions/s/consumers/c"),
        ("POST", "/subscriptions/s/skip-all"),
        ("POST", "/migrate"),
        ("GET", "/watch"),
    ]:
        assert (path, client.request(verb, f"{PATH}{path}").status_code) == (path, 404)
    assert client.get("/admin/v2/scalable/acme/removal").json() == []
    assert told(running) == [("deleted", "s"), ("deleted",)]
    refused = client.put(PATH)
    assert refused.status_code == 503
    assert f"an earlier {TOPIC} has not ended yet" in refused.json()["reason"]
    segments.is_away = False
    assert client.put(PATH).status_code == 204
    assert (running.life(TOPIC) or 0) > (life or 0)
    assert client.get(f"{PATH}/stats").json()["subscriptions"] == {}
    assert [event.cause for event in running.announced(TOPIC) if isinstance(event, LayoutEvent)] == [
        "created",
        "deleted",
        "created",
    ]


def test_multi_commit_deletion_announces_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after any commit, it announces the end of each subscription once."""
    monkeypatch.setattr(transaction, "MAX_PART_NODES", 2)
    names = ["a", "b"]
    commit, left = LayoutStore._commit, [0]

    def deadly(store: LayoutStore, *arguments: object) -> None:
        if left[0] == 0:
            raise Crash
        left[0] -= 1
        commit(store, *arguments)  # type: ignore[arg-type]

    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        with node_on(folder / "layouts.db", NoSegments()) as node:
            node.service.create_topic(TOPIC, 2, {})
            for name in names:
                for consumer in range(3):
                    node.registry.register_consumer(TOPIC, name, f"c{consumer}", "STREAM", session=True)
            with monkeypatch.context() as patch:
                left[0] = number
                patch.setattr(LayoutStore, "_commit", deadly)
                try:
                    node.service.delete_topic(TOPIC)
                except Crash:
                    is_whole = False
                else:
                    is_whole = True
        with run_controller(SqliteStore(folder / "layouts.db")) as next_one:
            if number == 0:
                assert next_one.client.delete(PATH).status_code == 204
            assert next_one.client.get(PATH).status_code == 404
            wait_until(lambda node=next_one.node: not leftovers(node), 30)  # type: ignore[misc]
            assert told(next_one) == [*(("deleted", name) for name in names), ("deleted",)]
        if is_whole:
            assert number > len(names)
            return
    raise AssertionError("the deletion never ended")
