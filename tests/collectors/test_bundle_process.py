"""`anabranch serve collector bundles --once`: a round gets to Kafka, and one that cannot be read is said."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from anabranch.cli.main import cli
from anabranch.collectors.bundles import BundleRounds, Unread
from anabranch.local.broker import EmbeddedBroker, create_topics
from schemas.bundles import LocalBrokerData
from schemas.kafka.broker_messages import BundleOwnership, LiveBrokers, LocalBrokerReport
from schemas.kafka.messages import parse_message
from schemas.kafka.topics import BUNDLE_TOPICS

CLUSTER, AT = "west", 1_763_660_000_000
MESSAGES = [
    LiveBrokers(v=1, type="brokers", cluster=CLUSTER, brokers={}, at=AT),
    BundleOwnership(
        v=1, type="ownership", cluster=CLUSTER, namespace="a/b", owners={"0x00000000_0xffffffff": None}, at=AT
    ),
    LocalBrokerReport(
        v=1, type="local-broker-data", cluster=CLUSTER, broker="b:1", data=LocalBrokerData(last_update=AT), at=AT
    ),
]


def collect(broker: EmbeddedBroker, tmp_path):
    settings = tmp_path / "a.toml"
    settings.write_text(f'[kafka]\nbootstrap = "{broker.bootstrap}"\n')
    return CliRunner().invoke(cli, ["--config", str(settings), "collect", "bundles", "--once"])


def test_round_reaches_kafka_as_family_messages(broker: EmbeddedBroker, tmp_path, monkeypatch):
    create_topics(broker.connection, BUNDLE_TOPICS)
    monkeypatch.setattr(BundleRounds, "read", lambda *_: MESSAGES)
    answer = collect(broker, tmp_path)
    assert (answer.exit_code, answer.output.strip()) == (0, "west: 3 messages")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.assign(
        [TopicPartition(topic.name, part, 0) for topic in BUNDLE_TOPICS for part in range(topic.partitions)]
    )
    records = consumer.consume(3, 20)
    consumer.close()
    found = [parse_message(one.topic(), one.key(), one.value()) for one in records]
    assert sorted(map(str, found)) == sorted(map(str, MESSAGES))


def test_unreadable_cluster_is_an_exit_code(broker: EmbeddedBroker, tmp_path, monkeypatch: pytest.MonkeyPatch):
    def read(*_):
        raise Unread("the brokers: nobody there")

    monkeypatch.setattr(BundleRounds, "read", read)
    assert collect(broker, tmp_path).exit_code == 1
