"""The producer while the controller is killed and comes back, and while the broker restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.local.broker import EmbeddedBroker, free_ports
from anabranch.local.setup import Jars
from anabranch_client.producer import Producer
from tests.client.scalable_topic import Ledger, ScalableTopic
from tests.client.test_producer import produce_while
from tests.controller.conftest import run_controller
from tests.controller.processes import ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

NAME = "topic://acme/shop/orders"


@pytest.fixture
def own_broker(jars: Jars, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may kill."""
    broker = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def test_killed_controller_does_not_stop_producing(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CONTROLLER__PORT", str(free_ports(1)[0]))
    controller = ControllerProcess(tmp_path, "kafka", broker.bootstrap)
    ledger = Ledger()
    with controller.life() as (admin, _):
        topic = ScalableTopic(NAME, admin, broker.bootstrap)
        topic.create()
        topic.split(0)
        producer = Producer(topic.config(), topic.name)
        wait_until(lambda: producer.flush(60) == 0)
    with producer:
        before = len(ledger.acknowledged)
        produce_while(producer, ledger, lambda: len(ledger.acknowledged) < before + 5_000)
        assert producer.flush(60) == 0
        with controller.life() as (admin, _):
            topic = ScalableTopic(NAME, admin, broker.bootstrap)
            with ThreadPoolExecutor(1) as changing:
                done = changing.submit(lambda: [topic.split(1), topic.split(2)])
                produce_while(producer, ledger, lambda: not done.done())
                done.result()
            assert producer.flush(60) == 0
            ledger.check(topic)


@pytest.mark.soak
def test_restarted_broker_loses_nothing(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    ledger, stop = Ledger(), threading.Event()
    segments = KafkaSegments(own_broker.connection)
    with run_controller(tmp_path / "layouts.db", own_broker.bootstrap, segments=segments) as controller:
        topic = ScalableTopic(NAME, controller.client, own_broker.bootstrap)
        topic.create()
        with Producer(topic.config(), topic.name) as producer, ThreadPoolExecutor(1) as producing:
            done = producing.submit(produce_while, producer, ledger, lambda: not stop.is_set())
            try:
                wait_until(lambda: len(ledger.acknowledged) > 1_000, 120)
                own_broker.kill()
                own_broker.start()
                topic.split(0)
            finally:
                stop.set()
            done.result()
            assert producer.flush(120) == 0
        # An acknowledgement that was lost in the moment of the seal makes a second copy.
        ledger.check(topic, repeats=True)
