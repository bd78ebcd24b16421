"""A real controller on a real port for the tests of its REST interface; its Kafka is a closed port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from anabranch.auth.callers import Access
from anabranch.controller.app import ROUTES, create_app
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.metadata.base import MetadataStore
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.metadata.upgrade import UPGRADES
from anabranch.controller.node import Node, NodeSettings
from anabranch.controller.operations.pruning import Retention
from anabranch.controller.outbox.entries import StoredOutbox
from anabranch.controller.publishing.publisher import OutboxPublisher
from anabranch.controller.segments.base import SegmentStore
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.no_segments import NoSegments
from anabranch.controller.service import ScalableTopicService
from anabranch.controller.watch.layout_watcher import LayoutWatcher
from anabranch.local.broker import EmbeddedBroker
from anabranch.local.setup import Jars
from decisions.autoscale.policy import ClusterPolicy
from runtime.listener.connections import ListenerLimits
from runtime.listener.names import NodeNames
from runtime.listener.server import WEBSOCKETS, Server, listen, url_of
from schemas.ids import EVERY_TOPIC
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import Message, Rejected, parse_message
from schemas.settings.controller import LimitSettings
from schemas.settings.root import load_settings
from tests.controller.places import Place
from tests.controller.plain_http import PLAIN
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

LIMITS = load_settings(environment={}).controller.limits
NOWHERE = "127.0.0.1:1"
"""No broker listens here: everything stays in the outbox, where a test can read it."""


@dataclass
class Clock:
    """A wall clock that the test moves, milliseconds."""

    now: int = 1_763_660_000_000

    def __call__(self) -> int:
        return self.now


LIFE = Clock.now
"""The life of a topic that is the first of its name at a controller whose clock was not moved."""


@dataclass
class RunningController:
    """The parts of a controller that answers at `url`, and a client for it."""

    url: str
    nodes: MetadataStore
    store: LayoutStore
    service: ScalableTopicService
    publisher: OutboxPublisher
    clock: Clock
    client: httpx.Client
    watcher: LayoutWatcher
    node: Node
    server: Server
    namespaces: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    def new_namespace(self) -> str:
        """A `tenant/namespace` that no other test uses."""
        return f"acme/n{next(self.namespaces)}"

    def life(self, topic: str) -> int | None:
        """Which life of its name a topic is."""
        return self.store.created_at(topic)

    def segments(self, topic: str) -> SegmentStore:
        """The segments of the present life of a topic."""
        return self.node.segments.of_incarnation(self.life(topic))

    def stop(self) -> None:
        """Begin a clean stop."""
        self.server.should_exit = True

    def announced(self, topic: str | None = None) -> list[Message]:
        """What waits in the outbox, of one topic or of no topic, each message checked as listeners check it."""
        outbox = StoredOutbox(self.nodes)
        entries = outbox.read(outbox.names())
        records = [record for entry in entries for record in entry.records if record.key == (topic or EVERY_TOPIC)]
        messages = [parse_message(record.source, record.key.encode(), record.value) for record in records]
        assert not [message for message in messages if isinstance(message, Rejected)]
        return messages


_routes: list[BaseRoute] = []


def share_routes(app: FastAPI) -> None:
    """Give a controller the routes of the first one in this process: FastAPI builds them in its first request, 80 ms.

    All but `/healthz` find the parts of their controller through the request.
    """
    included = [route for route in app.router.routes if not isinstance(route, Route)]
    own = [route for route in app.router.routes if isinstance(route, Route)]
    _routes[:] = _routes or included
    assert len(_routes) == len(ROUTES)
    app.router.routes[:] = [*_routes, *own]


@contextmanager
def run_controller(
    database: Path | MetadataStore,
    bootstrap: str = NOWHERE,
    token: str | None = None,
    tokens_file: Path | None = None,
    retention_seconds: float = -1,
    snapshot_seconds: float = 3600,
    prune_seconds: float = 3600,
    segments: SegmentStore | None = None,
    grace_seconds: float = 60,
    policy: ClusterPolicy = ClusterPolicy("default"),  # noqa: B008
    limits: LimitSettings = LIMITS,
    session_seconds: float = 5,
    connections: ListenerLimits | None = None,
) -> Iterator[RunningController]:
    """A controller in this process, on a free port, with a fixed clock."""
    clock = Clock()
    bounds = connections or ListenerLimits(limits.connections, limits.connections_per_address)
    listener = listen("127.0.0.1", 0, bounds, "controller")
    url = url_of(listener, is_secure=False)
    nodes = SqliteStore(database, UPGRADES) if isinstance(database, Path) else database
    settings = NodeSettings(
        url,
        KafkaConnection(bootstrap),
        policy,
        Retention(retention_seconds, -1),
        snapshot_seconds,
        session_seconds=session_seconds,
        max_subscriptions=limits.subscriptions,
    )
    node = Node(nodes, segments or NoSegments(), settings, clock)
    app = create_app(node, Access(tokens_file, token), NodeNames("127.0.0.1"), limits, grace_seconds, prune_seconds)
    share_routes(app)
    server = Server(listener.config(app, None, 5, **WEBSOCKETS), app.state.end_sessions)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        with httpx.Client(base_url=url, timeout=30, verify=PLAIN) as client:
            yield RunningController(
                url, nodes, node.store, node.service, node.publisher, clock, client, app.state.watcher, node, server
            )
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        nodes.close()


@pytest.fixture(scope="session")
def kafka(broker: EmbeddedBroker) -> str:
    """`host:port` of a real broker with the three topics."""
    return broker.bootstrap


@pytest.fixture(scope="session")
def kafka_segments(kafka: str) -> KafkaSegments:
    """One store for all tests, as a process has one: it keeps connections. Each test takes topics of its own."""
    return KafkaSegments(KafkaConnection(kafka))


@pytest.fixture(scope="session")
def zookeeper(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for the whole session; tests use a root of their own."""
    one = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), jars.zookeeper)
    one.start()
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(params=["sqlite", "zookeeper"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place for metadata stores: the test runs on both kinds."""
    one = Place(
        tmp_path / "metadata.db", request.getfixturevalue("zookeeper") if request.param == "zookeeper" else None
    )
    yield one
    one.close()


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """One controller for all tests of a run; each test takes a namespace of its own."""
    with run_controller(tmp_path_factory.mktemp("controller") / "layouts.db") as running:
        yield running


@pytest.fixture
def namespace(controller: RunningController) -> str:
    """A fresh `tenant/namespace`."""
    return controller.new_namespace()
