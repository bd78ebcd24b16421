"""Splits and merges: a controller that dies between any two steps ends them after its next start."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.node import Node, NodeSettings
from anabranch.controller.operations.pruning import Retention
from anabranch.controller.segments.base import SegmentNotFound, SegmentStore, SegmentStoreError
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import SegmentOfLife, kafka_topic, segment_of
from anabranch.controller.segments.no_segments import NoSegments
from decisions.autoscale.policy import ClusterPolicy
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import segment_topic
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import LayoutEvent
from schemas.metadata import ScalableTopicMetadata
from tests.controller.conftest import LIFE, NOWHERE, Clock, RunningController, run_controller
from tests.controller.layout_strategies import assert_tiles
from tests.controller.operations.crash_points import MERGE_POINTS, SPLIT_POINTS, Crash, crash_at
from tests.controller.processes import ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.process

TOPIC = "topic://acme/ops/t"
PATH = "/admin/v2/scalable/acme/ops/t"


def layout_of(client: httpx.Client) -> ScalableTopicMetadata:
    found = ScalableTopicMetadata.model_validate_json(client.get(PATH).content)
    assert_tiles(found)
    return found


def newest(client: httpx.Client) -> dict[str, object]:
    found: dict[str, object] = client.get(f"{PATH}/operations").json()[0]
    return found


def call_deadly(service: ControllerProcess, point: str, call: str) -> None:
    with service.life(point) as (client, process):
        with pytest.raises(httpx.TransportError):
            client.post(f"{PATH}/{call}", headers={"X-Anabranch-Decision": "d-1"})
        assert process.wait(30) == -signal.SIGKILL


@contextmanager
def node_on(
    database: Path, segments: SegmentStore, retention_seconds: float = 3600, checkpoint_seconds: float = -1
) -> Iterator[Node]:
    """The parts of a controller, without a server around them."""
    nodes = SqliteStore(database)
    settings = NodeSettings(
        "http://one",
        KafkaConnection(NOWHERE),
        ClusterPolicy("default"),
        Retention(retention_seconds, checkpoint_seconds),
        3600,
        5,
    )
    try:
        yield Node(nodes, segments, settings, Clock())
    finally:
        nodes.close()


def crash(node: Node, call: str, point: str, database: Path, left: Path) -> None:
    """Split or merge up to the point; `left` is then what kill -9 leaves of the database: its files as they are."""
    kind, *segments = call.split("/")
    change = node.service.split_segment if kind == "split" else node.service.merge_segments
    with crash_at(point), pytest.raises(Crash):
        change(TOPIC, *map(int, segments), "d-1")
    for suffix in ("", "-wal"):
        shutil.copy(f"{database}{suffix}", f"{left}{suffix}")


def check_ended_once(database: Path, call: str, kind: str) -> None:
    """At its start a controller ends the operation, and it is announced once."""
    with run_controller(database) as second:
        wait_until(lambda: newest(second.client)["step"] == "done", 30)
        assert newest(second.client)["kind"] == kind
        assert layout_of(second.client).epoch == 1
        assert second.client.post(f"{PATH}/{call}").status_code == 412
        events = [event for event in second.announced(TOPIC) if isinstance(event, LayoutEvent)]
        assert [(event.cause, event.decision_id, event.layout.epoch) for event in events] == [
            ("created", None, 0),
            (kind, "d-1", 1),
        ]


@pytest.mark.parametrize(
    ("call", "kind", "point"),
    [("split/0", "split", point) for point in SPLIT_POINTS] + [("merge/1/0", "merge", point) for point in MERGE_POINTS],
)
def test_stopped_operation_resumes_and_announces_once(call: str, kind: str, point: str, tmp_path: Path) -> None:
    with node_on(tmp_path / "before.db", NoSegments()) as node:
        node.service.create_topic(TOPIC, 2, {})
        crash(node, call, point, tmp_path / "before.db", tmp_path / "layouts.db")
    check_ended_once(tmp_path / "layouts.db", call, kind)


@pytest.mark.parametrize(
    ("call", "kind", "point"), [("split/0", "split", "published"), ("merge/1/0", "merge", "notify-consumers")]
)
def test_killed_operation_resumes_and_announces_once(call: str, kind: str, point: str, tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db") as first:
        first.client.put(f"{PATH}?numInitialSegments=2")
    call_deadly(ControllerProcess(tmp_path), point, call)
    check_ended_once(tmp_path / "layouts.db", call, kind)


def fill(kafka: str, segment: str, life: int | None) -> None:
    """Five messages."""
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(5):
        producer.produce(kafka_topic(segment, life), str(number).encode())
    assert producer.flush(30) == 0


def check_nothing_lost(client: httpx.Client, segments: KafkaSegments, parent: str) -> None:
    """The split ends; all messages and the subscription are there; a deletion leaves no segment."""
    wait_until(lambda: newest(client)["step"] == "done", 60)
    layout = SegmentLayout.from_metadata(layout_of(client))
    segments = segments.of_incarnation(layout.created_at_ms)
    assert segments.is_terminated(parent)
    assert segments.backlog(parent, "billing") == 5
    for child in layout.active:
        assert segments.subscriptions(segment_topic(TOPIC, child)) == ["billing"]
        assert not segments.is_terminated(segment_topic(TOPIC, child))
    assert client.delete(PATH).status_code == 204
    for one in layout.segments.values():
        with pytest.raises(SegmentNotFound):
            segments.subscriptions(segment_topic(TOPIC, one))


@pytest.mark.broker
@pytest.mark.parametrize("point", ["terminate-parent", "update-layout", "published"])
def test_stopped_split_on_kafka_loses_nothing(
    point: str, kafka: str, kafka_segments: KafkaSegments, tmp_path: Path
) -> None:
    segments = kafka_segments
    with node_on(tmp_path / "before.db", segments) as node:
        node.service.create_topic(TOPIC, 1, {})
        node.registry.create_subscription(TOPIC, "billing", "STREAM")
        parent = f"segment://{TOPIC.removeprefix('topic://')}/0000-ffff-0"
        fill(kafka, parent, LIFE)
        crash(node, "split/0", point, tmp_path / "before.db", tmp_path / "layouts.db")
    with run_controller(tmp_path / "layouts.db", segments=segments) as second:
        check_nothing_lost(second.client, segments, parent)


@pytest.mark.broker
def test_killed_split_on_kafka_loses_nothing(kafka: str, kafka_segments: KafkaSegments, tmp_path: Path) -> None:
    service, segments = ControllerProcess(tmp_path, "kafka", kafka), kafka_segments
    with service.life() as (client, _):
        assert client.put(PATH).status_code == 204
        assert client.put(f"{PATH}/subscriptions/billing").status_code == 204
        layout = SegmentLayout.from_metadata(layout_of(client))
        (parent,) = [segment_topic(TOPIC, one) for one in layout.active]
    fill(kafka, parent, layout.created_at_ms)
    call_deadly(service, "update-layout", "split/0")
    with service.life() as (client, _):
        check_nothing_lost(client, segments, parent)


@pytest.mark.broker
def test_killed_creation_leaves_nothing_and_repeats(kafka: str, tmp_path: Path) -> None:
    service = ControllerProcess(tmp_path, "kafka", kafka)
    first, second = (f"segment://acme/ops/made/{descriptor}" for descriptor in ("0000-7fff-0", "8000-ffff-1"))
    path = "/admin/v2/scalable/acme/ops/made"
    with service.life("created") as (client, process):
        with pytest.raises(httpx.TransportError):
            client.put(f"{path}?numInitialSegments=2")
        assert process.wait(30) == -signal.SIGKILL
    ((made, undone),) = in_kafka(kafka, "acme/ops/made")
    assert made == first
    with service.life() as (client, _):
        wait_until(lambda: in_kafka(kafka, "acme/ops/made") == [], 30)
        assert client.get(path).status_code == 404
        assert client.put(f"{path}?numInitialSegments=2").status_code == 204
        (_, life), _ = in_kafka(kafka, "acme/ops/made")
        assert in_kafka(kafka, "acme/ops/made") == [(first, life), (second, life)]
        assert (life or 0) > (undone or 0) > 0
        assert client.delete(path).status_code == 204
    assert in_kafka(kafka, "acme/ops/made") == []


def in_kafka(kafka: str, topic: str) -> list[SegmentOfLife]:
    """The segments of a scalable topic that there are in Kafka, in all of its lives."""
    names = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
    found = [segment_of(name) for name in names if name.startswith("segment..")]
    return sorted(one for one in found if one.segment.startswith(f"segment://{topic}/"))


class Unreachable(NoSegments):
    """Segments whose store can be cut off: the fault that no real store shows when asked to."""

    def __init__(self) -> None:
        self.away = False

    def terminate(self, segment: str) -> int:
        if self.away:
            raise SegmentStoreError("no answer")
        return super().terminate(segment)


@pytest.fixture
def segments() -> Unreachable:
    return Unreachable()


@pytest.fixture
def running(segments: Unreachable, tmp_path: Path) -> Iterator[RunningController]:
    with run_controller(tmp_path / "layouts.db", segments=segments) as one:
        yield one


def test_unanswered_operation_joined_by_next_caller(running: RunningController, segments: Unreachable) -> None:
    running.client.put(f"{PATH}?numInitialSegments=2")
    segments.away = True
    assert running.client.post(f"{PATH}/split/0").status_code == 503
    assert running.client.post(f"{PATH}/split/1").status_code == 503
    assert [newest(running.client)[name] for name in ("step", "segments")] == ["terminate-parent", ["0000-7fff-0"]]
    assert len(running.client.get(f"{PATH}/operations").json()) == 1
    assert layout_of(running.client).epoch == 0
    segments.away = False
    assert running.client.post(f"{PATH}/split/0").status_code == 204
    assert layout_of(running.client).epoch == 1
    assert running.client.post(f"{PATH}/split/1").status_code == 204
    assert [one["step"] for one in running.client.get(f"{PATH}/operations").json()] == ["done", "done"]


def test_topic_deletion_removes_open_operation(running: RunningController, segments: Unreachable) -> None:
    running.client.put(PATH)
    segments.away = True
    assert running.client.post(f"{PATH}/split/0").status_code == 503
    assert running.client.delete(PATH).status_code == 204
    segments.away = False
    running.client.put(PATH)
    assert layout_of(running.client).epoch == 0
    assert running.client.post(f"{PATH}/split/0").status_code == 204


def test_the_journal_of_an_unknown_topic_is_404(running: RunningController) -> None:
    assert running.client.get(f"{PATH}/operations").status_code == 404
