"""The embedded broker: what was acknowledged survives SIGKILL, the address stays, the topics are as defined."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from anabranch.local.broker import EmbeddedBroker, create_topics, is_serving
from anabranch.local.processes import session_members
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import MAX_VALUE_BYTES
from schemas.kafka.topics import CONTROL_EVENTS, KAFKA_TOPICS, SEGMENT_STATS
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


def produce(bootstrap: str, topic: str, values: list[bytes]) -> list[object]:
    """Sends the values to partition 0, and answers the errors."""
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.max.bytes": 20_000_000})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: error and errors.append(error.name()))
    assert producer.flush(30) == 0
    return errors


def read(bootstrap: str, topic: str) -> list[bytes]:
    """All values of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    partition = TopicPartition(topic, 0, 0)
    try:
        _, end = consumer.get_watermark_offsets(partition, timeout=20)
        consumer.assign([partition])
        values: list[bytes] = []
        wait_until(lambda: values.extend(one.value() for one in consumer.consume(end, 0.2)) or len(values) >= end, 20)
        return values
    finally:
        consumer.close()


@pytest.mark.soak
def test_acknowledged_messages_survive_sigkill(tmp_path, jars):
    """The address stays the same."""
    one = EmbeddedBroker(tmp_path, jars.kafka)
    one.start()
    try:
        create_topics(one.connection)
        sent, address = [b"%d" % number for number in range(500)], one.bootstrap
        assert produce(one.bootstrap, CONTROL_EVENTS.name, sent) == []
        one.kill()
        assert not is_serving(KafkaConnection(address))
        one.start()
        assert one.bootstrap == address
        assert read(one.bootstrap, CONTROL_EVENTS.name) == sent
        one.stop()
        later = EmbeddedBroker(tmp_path, jars.kafka)
        later.start()
        try:
            create_topics(later.connection)
            assert read(later.bootstrap, CONTROL_EVENTS.name) == sent
        finally:
            later.stop()
    finally:
        one.kill()


def test_topics_created_idempotently_as_defined(broker):
    create_topics(broker.connection)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    made = admin.list_topics(timeout=10).topics
    for topic in KAFKA_TOPICS:
        assert len(made[topic.name].partitions) == topic.partitions
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic.name)
        (described,) = (one.result(10) for one in admin.describe_configs([resource]).values())
        assert {name: described[name].value for name in topic.config} == topic.config


def test_largest_valid_value_accepted_larger_refused(broker):
    assert produce(broker.bootstrap, SEGMENT_STATS.name, [b"x" * MAX_VALUE_BYTES]) == []
    too_large = produce(broker.bootstrap, SEGMENT_STATS.name, [b"x" * (MAX_VALUE_BYTES + 100_000)])
    assert too_large == ["MSG_SIZE_TOO_LARGE"]


def test_broker_dies_with_its_parent(tmp_path, jars):
    script = textwrap.dedent(f"""
        import threading
        from pathlib import Path
        from anabranch.local.broker import EmbeddedBroker
        one = EmbeddedBroker(Path({str(tmp_path)!r}), Path({str(jars.kafka)!r}))
        one.start()
        print(one.process.pid, flush=True)
        threading.Event().wait()
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        session = int(owner.stdout.readline())
        owner.kill()
    wait_until(lambda: session_members(session) == [], 30)
    assert session_members(session) == []


def test_trial_kafka_has_topics_and_stops_on_ctrl_c(tmp_path, jars):
    with subprocess.Popen(
        [sys.executable, "-m", "anabranch.local.kafka", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ANABRANCH_HOME": str(tmp_path), "ANABRANCH_LOCAL__JARS": str(jars.kafka.parent)},
    ) as process:
        try:
            name, _, bootstrap = process.stdout.readline().strip().partition("=")
            assert (name, bootstrap.rpartition(":")[0]) == ("export ANABRANCH_KAFKA_BOOTSTRAP", "127.0.0.1")
            found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics
            assert {one.name: one.partitions for one in KAFKA_TOPICS}.items() <= {
                name: len(topic.partitions) for name, topic in found.items()
            }.items()
            # Not in the folder of a local run, which would bring its topics along.
            assert [path.name for path in (tmp_path / "var").iterdir()] == ["kafka-alone"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert not is_serving(KafkaConnection(bootstrap))
        finally:
            process.kill()
