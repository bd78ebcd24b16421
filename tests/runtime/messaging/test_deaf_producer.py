"""A producer's client that does not hear Kafka any more is replaced, with all that waits in it; one that does is not.

How librdkafka's client goes deaf (issue 5301) cannot be called up at will, so Kafka moves to another port here: the
client goes on asking at the old one, for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from anabranch.local.broker import EmbeddedBroker, create_topics, free_ports
from anabranch.local.setup import Jars
from runtime.messaging import producer as module
from runtime.messaging.producer import LastingProducer
from schemas.kafka.connection import KafkaConnection
from tests.runtime.messaging.test_producer import MOCK, Deliveries
from tests.waiting import wait_until

TOPIC = "control-events"
CONFIGURATION = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "message.timeout.ms": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


@pytest.fixture
def stopped(jars: Jars, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may stop."""
    one = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    one.start()
    try:
        create_topics(one.connection)
        yield one
    finally:
        one.stop()


def in_kafka(kafka: KafkaConnection) -> dict[bytes, list[bytes]]:
    """What has been written, by key, in its order."""
    consumer = Consumer(kafka.librdkafka({"group.id": "tests", "enable.auto.commit": False, "log_level": 0}))
    found: dict[bytes, list[bytes]] = {}
    try:
        for partition in range(2):
            at = TopicPartition(TOPIC, partition, 0)
            end = consumer.get_watermark_offsets(at, timeout=10)[1]
            consumer.assign([at])
            records: list = []
            while len(records) < end:
                records += [one for one in consumer.consume(end, 1) if one.error() is None]
            for one in records:
                found.setdefault(one.key(), []).append(one.value())
    finally:
        consumer.close()
    return found


@pytest.mark.broker
def test_queued_messages_arrive_in_order_by_new_client(
    stopped: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited while Kafka was away."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    producer, told = LastingProducer(stopped.connection.librdkafka(CONFIGURATION)), Deliveries()
    first = producer._producer

    def send(*numbers: int) -> None:
        for number in numbers:
            producer.produce(TOPIC, b"%d" % number, b"k%d" % (number % 3), told.of(number))

    def arrive(number: int) -> None:
        def all_of_them() -> bool:
            producer.poll(0.05)
            return len(told) == number

        wait_until(all_of_them, 60)

    send(*range(5))
    arrive(5)
    stopped.stop()
    send(*range(5, 20))
    wait_until(lambda: producer.poll(0.05) or producer._check is not None, 30)
    stopped.start()
    arrive(20)
    assert producer._producer is first, "it has heard by itself that Kafka is back"
    monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)
    stopped.stop()
    send(*range(20, 40))
    stopped.port = free_ports(1)[0]
    producer._configuration["bootstrap.servers"] = stopped.bootstrap
    stopped.start()
    arrive(40)
    assert producer._producer is not first
    assert sorted(told) == [(number, True) for number in range(40)], "each is told of once, and none has failed"
    for key, values in in_kafka(stopped.connection).items():
        expected = [b"%d" % number for number in range(40) if b"k%d" % (number % 3) == key]
        assert list(dict.fromkeys(values)) == expected, "all, in their order"


def test_connected_client_not_replaced_while_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connected client stays however long nothing is delivered."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.05)
    producer, told = LastingProducer({**MOCK, "linger.ms": 1_000}), Deliveries()
    first = producer._producer
    producer.produce("a-topic", b"x", b"k", told.of("patient"))
    assert producer.waits
    asked = []
    until = time.monotonic() + 20
    while not told and time.monotonic() < until:
        producer.poll(0.02)
        asked.append(producer._check is not None)
    assert (told, producer._producer is first) == ([("patient", True)], True)
    assert any(asked)
    assert not producer.waits
