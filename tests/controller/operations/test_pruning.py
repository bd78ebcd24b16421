"""Pruning never takes what is unread: with a backlog on Kafka and without retention, whatever becomes of positions."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from anabranch.controller.node import Node
from anabranch.controller.operations import pruning
from anabranch.controller.operations.pruning import Retention
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import group_id
from anabranch.controller.segments.no_segments import NoSegments
from decisions.topic.layout import SegmentLayout
from schemas.settings.root import load_settings
from tests.controller.conftest import LIFE, run_controller
from tests.controller.operations.test_operations import in_kafka, node_on
from tests.controller.processes import ControllerProcess
from tests.controller.segments.test_segments_kafka import acknowledge, write
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return f"acme/pruning/{request.node.name[:60]}"


@pytest.fixture
def node(kafka: str, kafka_segments: KafkaSegments, name: str, tmp_path: Path) -> Iterator[Node]:
    """A topic whose first segment is sealed, with three messages for the subscription `billing`; no retention."""
    with node_on(tmp_path / "layouts.db", kafka_segments, retention_seconds=0) as one:
        one.service.create_topic(f"topic://{name}", 1, {})
        one.registry.create_subscription(f"topic://{name}", "billing", "STREAM")
        write(kafka, f"segment://{name}/0000-ffff-0", [b"a", b"b", b"c"], life=LIFE)
        one.service.split_segment(f"topic://{name}", 0)
        yield one
        one.service.delete_topic(f"topic://{name}")


def lose_position(kafka: str, segment: str) -> None:
    """What a stranger does who deletes the group, and Kafka when it has forgotten an idle one."""
    admin = AdminClient({"bootstrap.servers": kafka})
    (done,) = admin.delete_consumer_groups([group_id(segment, "billing", LIFE)]).values()
    done.result(10)


def prune(node: Node) -> int:
    """Without waiting because the last look was in vain."""
    node.pruning.look_again()
    return node.pruning.prune()


def reasons(node: Node, topic: str) -> dict[int, str]:
    """Why the sealed segments of a topic are kept."""
    return {one.segment: one.reason for one in node.service.sealed(topic)}


@pytest.mark.broker
def test_subscription_with_lost_position_starts_over(kafka: str, name: str, node: Node) -> None:
    segment, segments = f"segment://{name}/0000-ffff-0", node.segments.of_incarnation(LIFE)
    assert prune(node) == 0
    assert reasons(node, f"topic://{name}") == {0: "the subscription billing has 3 messages of it to read"}
    lose_position(kafka, segment)
    assert reasons(node, f"topic://{name}") == {0: "the subscription billing has no position in it"}
    assert segments.unread(segment, ["billing"]) == {"billing": None}
    assert [prune(node), prune(node)] == [0, 0]
    assert segments.backlog(segment, "billing") == 3
    lose_position(kafka, segment)
    layout = SegmentLayout.from_metadata(node.store.existing_topic(f"topic://{name}").metadata)
    assert [node.registry.backlogs("billing", {0: segment}, layout) for _ in range(2)] == [{}, {0: 3}]
    acknowledge(kafka, segment, "billing", 3, LIFE)
    assert prune(node) == 1
    assert len(in_kafka(kafka, name)) == 2


@pytest.mark.broker
def test_known_read_positions_not_delivered_again(kafka: str, name: str, node: Node) -> None:
    segment, topic = f"segment://{name}/0000-ffff-0", f"topic://{name}"
    node.registry.save_progress(topic, "billing", [0], {}, node.registry.life(topic, "billing"))
    lose_position(kafka, segment)
    node.registry.position(topic, "billing")
    assert node.segments.of_incarnation(LIFE).backlog(segment, "billing") == 0
    lose_position(kafka, segment)
    assert prune(node) == 1


@pytest.mark.broker
def test_kill_before_positions_prunes_nothing_unread(
    kafka: str, kafka_segments: KafkaSegments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes between a registration and its positions."""
    monkeypatch.setattr(pruning, "DELAY_SECONDS", 0.05)
    path, segment = "/admin/v2/scalable/acme/pruning/killed", "segment://acme/pruning/killed/0000-ffff-0"
    with ControllerProcess(tmp_path, "kafka", kafka).life("subscribed") as (client, process):
        assert client.put(path).status_code == 204
        life = client.get(path).json()["createdAtMs"]
        write(kafka, segment, [b"a", b"b", b"c"], life=life)
        with pytest.raises(httpx.TransportError):
            client.put(f"{path}/subscriptions/billing")
        assert process.wait(30) == -signal.SIGKILL
    segments = kafka_segments.of_incarnation(life)
    assert segments.subscriptions(segment) == []
    with run_controller(
        tmp_path / "layouts.db", segments=kafka_segments, retention_seconds=0, prune_seconds=0.05
    ) as running:
        running.clock.now = life
        assert running.client.post(f"{path}/split/0").status_code == 204
        wait_until(lambda: segments.subscriptions(segment) == ["billing"], 30)
        assert segments.backlog(segment, "billing") == 3
        assert "0" in running.client.get(path).json()["segments"]
        acknowledge(kafka, segment, "billing", 3, life)
        wait_until(lambda: "0" not in running.client.get(path).json()["segments"], 30)
        assert running.client.delete(path).status_code == 204


@pytest.mark.broker
def test_segment_unknown_to_one_broker_not_gone(
    kafka: str, name: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_of, silent = KafkaSegments._topic, ["silent"]
    monkeypatch.setattr(KafkaSegments, "_topic", lambda *asked: None if silent and silent.pop() else topic_of(*asked))
    segment = f"segment://{name}/0000-ffff-0"
    assert node.segments.of_incarnation(LIFE).unread(segment, ["billing"]) == {"billing": 3}
    assert not silent


class Subscribing(NoSegments):
    """Segments that somebody subscribes to while they are looked at."""

    node: Node | None = None

    def unread(self, segment: str, subscriptions: object) -> Mapping[str, int | None]:
        if self.node is not None:
            self.node.registry.create_subscription("topic://acme/pruning/late", "late", "STREAM")
        return {}


def test_subscriber_during_check_finds_all_segments(tmp_path: Path) -> None:
    topic, segments = "topic://acme/pruning/late", Subscribing()
    with node_on(tmp_path / "layouts.db", segments, retention_seconds=0) as node:
        node.service.create_topic(topic, 1, {})
        node.service.split_segment(topic, 0)
        segments.node = node
        assert prune(node) == 0
        assert len(node.store.existing_topic(topic).metadata.segments) == 3
        assert prune(node) == 1


class Counting(NoSegments):
    """Segments with a backlog, whose looks are counted."""

    looks = 0

    def unread(self, segment: str, subscriptions: object) -> Mapping[str, int | None]:
        self.looks += 1
        return {"s": 1}


def test_backlogged_topic_checked_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks become frequent again once something changes."""
    now, topic, segments = [0.0], "topic://acme/pruning/seldom", Counting()
    monkeypatch.setattr(pruning, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with node_on(tmp_path / "layouts.db", segments, retention_seconds=0) as node:
        node.service.create_topic(topic, 1, {})
        node.service.split_segment(topic, 0)
        for second in range(0, 7200, 5):
            now[0] = float(second)
            node.pruning.prune()
        assert 10 <= segments.looks <= 20
        node.registry.register_consumer(topic, "s", "c", "STREAM")
        node.pruning.prune()
        assert segments.looks <= 21


@pytest.mark.parametrize(
    ("retention", "pruned", "reason"),
    [
        (Retention(-1, -1), 0, "controller.sealed_retention_seconds is negative"),
        (
            Retention(0, -1),
            0,
            "controller.checkpoint_retention_seconds is negative: nobody knows what the CHECKPOINT "
            "subscription flink has read",
        ),
        (
            Retention(0, 60),
            0,
            "it was sealed less than 60 s ago (controller.checkpoint_retention_seconds): nobody knows "
            "what the CHECKPOINT subscription flink has read",
        ),
        (Retention(60, 0), 0, "it was sealed less than 60 s ago (controller.sealed_retention_seconds)"),
        (Retention(0, 0), 1, None),
    ],
)
def test_sealed_segment_shows_why_it_is_kept(
    tmp_path: Path, retention: Retention, pruned: int, reason: str | None
) -> None:
    topic = "topic://acme/pruning/shown"
    with node_on(tmp_path / "layouts.db", NoSegments(), retention.sealed, retention.checkpoint) as node:
        node.service.create_topic(topic, 1, {})
        node.registry.create_subscription(topic, "flink", "CHECKPOINT")
        node.service.split_segment(topic, 0)
        assert prune(node) == pruned
        assert reasons(node, topic) == ({} if reason is None else {0: reason})


class Backlog(NoSegments):
    """Segments that are read, but for some."""

    def __init__(self, left: dict[str, int]) -> None:
        super().__init__()
        self.left = left

    def unread(self, segment: str, subscriptions: object) -> Mapping[str, int | None]:
        return {"s": next((left for end, left in self.left.items() if segment.endswith(end)), 0)}


def test_segment_stays_as_long_as_its_parent(tmp_path: Path) -> None:
    """A checkpoint that names a grandchild would not know that the parent is read."""
    topic, segments = "topic://acme/pruning/generations", Backlog({"0000-ffff-0": 1})
    with node_on(tmp_path / "layouts.db", segments, retention_seconds=0) as node:
        node.service.create_topic(topic, 1, {})
        node.service.split_segment(topic, 0)
        node.service.split_segment(topic, 1)
        assert prune(node) == 0
        assert reasons(node, topic) == {0: "the subscription s has 1 messages of it to read", 1: "its parent 0 is kept"}
        segments.left = {}
        assert set(reasons(node, topic).values()) == {"it is removed in the next round"}
        assert prune(node) == 2
        assert sorted(node.store.existing_topic(topic).metadata.segments) == [2, 3, 4]


def test_default_settings_prune_read_segments_only() -> None:
    """Segments that nobody is known to have read are kept."""
    delivered = load_settings(environment={}).controller
    assert delivered.sealed_retention_seconds >= 0 > delivered.checkpoint_retention_seconds
