"""A topic deleted and made again while its leader was frozen: what that one still does touches no new segment."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from anabranch.controller.errors import ControllerError
from anabranch.controller.metadata.base import StoreError
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from anabranch.controller.node import Node, NodeSettings
from anabranch.controller.operations.pruning import Retention
from anabranch.controller.segments.kafka import KafkaSegments
from decisions.autoscale.policy import ClusterPolicy
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import ConsumerEvent, LayoutEvent, parse_message
from tests.controller.conftest import NOWHERE, Clock
from tests.controller.operations.test_operations import in_kafka
from tests.controller.owned import announced
from tests.controller.places import end_zookeeper_session
from tests.controller.segments.test_segments_kafka import write
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

_roots = (f"/lives-{number}" for number in itertools.count())
GATES = ("create", "terminate", "delete", "delete_subscription", "seek", "create_subscription")


class Gated(KafkaSegments):
    """Segments in front of one of whose operations the process is frozen."""

    gate: str | None = None
    reached, may_go_on = threading.Event(), threading.Event()

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name in GATES and type(self).gate == name:
            type(self).gate = None
            self.reached.set()
            assert self.may_go_on.wait(60)
        return found


@pytest.fixture
def gated(kafka: str) -> Iterator[Gated]:
    Gated.reached, Gated.may_go_on = threading.Event(), threading.Event()
    yield Gated(KafkaConnection(kafka))
    Gated.gate = None
    Gated.may_go_on.set()


@pytest.fixture
def start(zookeeper: EmbeddedZooKeeper) -> Iterator[Callable[..., Node]]:
    """Starts a node of one cluster, without a server around it; its clock is set back by a second each time."""
    root, nodes = next(_roots), []

    def start_one(url: str, segments: KafkaSegments, clock: Clock | None = None) -> Node:
        settings = NodeSettings(url, KafkaConnection(NOWHERE), ClusterPolicy("default"), Retention(0, 0), 3600, 5)
        store = ZooKeeperStore(zookeeper.address, root, session_s=5)
        nodes.append(Node(store, segments, settings, clock or Clock(Clock.now - 1000 * len(nodes))))
        return nodes[-1]

    yield start_one
    for node in nodes:
        node.close()


@pytest.mark.parametrize("gate", GATES)
def test_frozen_leader_spares_next_incarnation(
    gate: str, kafka: str, kafka_segments: KafkaSegments, gated: Gated, start: Callable[..., Node]
) -> None:
    """A leader frozen in an earlier incarnation touches no segment of the next one."""
    name = f"acme/lives/{gate.replace('_', '-')}"
    topic = f"topic://{name}"
    old, new = start("http://127.0.0.1:1", gated), start("http://127.0.0.1:2", kafka_segments)
    if gate != "create":
        old.service.create_topic(topic, 1, {})
        old.registry.create_subscription(topic, "s", "STREAM")
        earlier = old.store.created_at(topic)
    work: dict[str, Callable[[], None]] = {
        "create": lambda: old.service.create_topic(topic, 1, {}),
        "terminate": lambda: old.service.split_segment(topic, 0),
        "delete": lambda: old.service.delete_topic(topic),
        "delete_subscription": lambda: old.registry.delete_subscription(topic, "s"),
        "seek": lambda: old.registry.seek(topic, "s", "latest"),
        "create_subscription": lambda: old.registry.create_subscription(topic, "other", "STREAM"),
    }
    Gated.gate = gate
    frozen = threading.Thread(target=_until_refused, args=[work[gate]])
    frozen.start()
    assert gated.reached.wait(60)
    if gate == "create":
        begun = old.store.open_creation(topic)
        assert begun is not None
        earlier = begun.created_at_ms
    assert isinstance(old.nodes, ZooKeeperStore)
    election = old.leaders._controllers[topic].election
    assert election is not None
    # A frozen process does not stand for election again when its session has ended.
    election.stand = lambda: None  # type: ignore[method-assign]
    end_zookeeper_session(old.nodes)
    wait_until(lambda: new.leaders.leader(topic) is None)
    if gate != "create":
        new.service.delete_topic(topic)
    new.service.create_topic(topic, 1, {})
    new.registry.create_subscription(topic, "s", "STREAM")
    life = new.store.created_at(topic)
    segment = f"segment://{name}/0000-ffff-0"
    write(kafka, segment, [b"a", b"b", b"c"], life=life)
    gated.may_go_on.set()
    frozen.join(60)
    assert not frozen.is_alive()
    assert (life or 0) > (earlier or 0)
    living = new.segments.of_incarnation(life)
    assert living.stats(segment).backlog == {"s": 3}
    assert not living.is_terminated(segment)
    assert in_kafka(kafka, name) == [(segment, life)]
    write(kafka, segment, [b"d"], life=life)
    new.service.delete_topic(topic)
    assert in_kafka(kafka, name) == []


def _until_refused(work: Callable[[], None]) -> None:
    with contextlib.suppress(ControllerError, StoreError):
        work()


def test_announcements_name_growing_incarnations(
    kafka: str, kafka_segments: KafkaSegments, start: Callable[..., Node]
) -> None:
    topic, clock, lives = "topic://acme/lives/said", Clock(), []
    node = start("http://127.0.0.1:1", kafka_segments, clock)
    for _ in range(2):
        node.service.create_topic(topic, 1, {})
        lives.append(node.store.created_at(topic))
        node.service.split_segment(topic, 0)
        node.registry.register_consumer(topic, "s", "c", "STREAM")
        node.registry.create_subscription(topic, "t", "QUEUE")
        node.registry.unregister_consumer(topic, "s", "c")
        node.registry.register_consumer(topic, "s", "c", "STREAM")
        node.registry.unregister_consumers(topic, "s", ["c"])
        node.registry.delete_subscription(topic, "t")
        node.service.set_policy(topic, None)
        node.service.delete_topic(topic)
        clock.now -= 3_600_000
    events = [parse_message(record.source, record.key.encode(), record.value) for record in announced(node.nodes)]
    said = [event.topic_created_at for event in events if isinstance(event, (ConsumerEvent, LayoutEvent))]
    assert len(said) == len(events)
    assert said == [life for life in lives for _ in range(10)]
    assert lives[1] > lives[0]


def test_older_release_segments_keep_their_names(
    kafka: str, kafka_segments: KafkaSegments, start: Callable[..., Node]
) -> None:
    """They are split, read and deleted under these names."""
    topic, name = "topic://acme/lives/older", "acme/lives/older"
    node = start("http://127.0.0.1:1", kafka_segments)
    node.service.create_topic(topic, 1, {})
    stored = node.store.existing_topic(topic)
    segment = f"segment://{name}/0000-ffff-0"
    node.segments.of_incarnation(stored.metadata.created_at_ms).delete(segment)
    with node.store.write(node.leaders.lead(topic)) as transaction:
        transaction.replace_layout(topic, stored.version, stored.metadata.model_copy(update={"created_at_ms": None}))
    node.segments.create(topic, 0, stored.metadata.segments[0].hash_range)
    write(kafka, segment, [b"a", b"b"])
    node.registry.create_subscription(topic, "s", "STREAM")
    node.service.split_segment(topic, 0)
    found = in_kafka(kafka, name)
    assert [life for _, life in found] == [None] * 3
    assert node.segments.backlog(segment, "s") == 2
    assert node.pruning.prune() == 0
    node.registry.seek(topic, "s", "latest")
    node.pruning.look_again()
    assert node.pruning.prune() == 1
    node.service.delete_topic(topic)
    assert in_kafka(kafka, name) == []
