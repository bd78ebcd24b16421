"""A real controller whose segments are topics of a real broker, for tests of the clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.local.broker import EmbeddedBroker
from schemas.kafka.connection import KafkaConnection
from tests.client.scalable_topic import ScalableTopic
from tests.controller.conftest import RunningController, run_controller


@pytest.fixture(scope="session")
def controller(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    """One controller for all tests of the clients; each takes a topic of its own."""
    segments = KafkaSegments(KafkaConnection(broker.bootstrap))
    database = tmp_path_factory.mktemp("controller") / "layouts.db"
    with run_controller(database, broker.bootstrap, segments=segments) as running:
        yield running


@pytest.fixture
def topic(controller: RunningController, broker: EmbeddedBroker) -> ScalableTopic:
    """A new topic of one segment."""
    topic = ScalableTopic(f"topic://{controller.new_namespace()}/orders", controller.client, broker.bootstrap)
    topic.create()
    return topic
