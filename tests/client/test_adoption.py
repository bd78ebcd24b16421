"""Plain Kafka topics that become scalable: their groups go on where they were, and read nothing twice."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from anabranch.controller.segments import kafka_adoption
from anabranch.controller.segments.base import SegmentStoreError
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_admin import KafkaAdmin
from anabranch.controller.segments.kafka_adoption import TopicAdoption
from anabranch.controller.service import ScalableTopicService
from anabranch.controller.sessions import draining
from anabranch.local.broker import EmbeddedBroker
from anabranch_client import CheckpointConsumer, Producer, QueueConsumer, StreamConsumer
from tests.cli.conftest import run
from tests.client.scalable_topic import ScalableTopic
from tests.controller.conftest import RunningController

pytestmark = pytest.mark.broker

PARTITIONS, KEYS, BEFORE, AFTER = 3, 12, 10, 5
"""Messages of each key before and after the adoption."""


class Crash(Exception):
    """The end of the command or of the controller's request."""


class PlainTopic:
    """A topic of Kafka's own with messages, and a way to adopt it."""

    def __init__(self, bootstrap: str, controller: RunningController, **config: str) -> None:
        self.bootstrap, self.controller = bootstrap, controller
        self.name = f"orders_{uuid.uuid4().hex[:12]}"
        self.topic = f"topic://{controller.new_namespace()}/orders"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(self.name, PARTITIONS, replication_factor=1, config=config)
        self.admin.create_topics([new])[self.name].result(60)
        producer = KafkaProducer({"bootstrap.servers": bootstrap})
        for number in range(BEFORE):
            for key in range(KEYS):
                producer.produce(self.name, str(number), f"key-{key}")
        assert producer.flush(60) == 0

    def commit(self, group: str, offsets: dict[int, int]) -> None:
        with closing(KafkaConsumer({"bootstrap.servers": self.bootstrap, "group.id": group})) as consumer:
            positions = [TopicPartition(self.name, partition, offset) for partition, offset in offsets.items()]
            stored = consumer.commit(offsets=positions, asynchronous=False)
            assert all(position.error is None for position in stored)

    def messages(self) -> dict[int, list[tuple[bytes | None, int]]]:
        """Return key and number of all messages, by partition."""
        stored: dict[int, list[tuple[bytes | None, int]]] = defaultdict(list)
        with closing(KafkaConsumer({"bootstrap.servers": self.bootstrap, "group.id": "t"})) as consumer:
            consumer.assign([TopicPartition(self.name, partition, 0) for partition in range(PARTITIONS)])
            while left := BEFORE * KEYS - sum(map(len, stored.values())):
                for message in consumer.consume(left, 60):
                    assert message.error() is None
                    stored[message.partition() or 0].append((message.key(), int(message.value() or b"")))
        return stored

    def adopt(self, *options: str) -> Result:
        environment = {"ANABRANCH_KAFKA__BOOTSTRAP": self.bootstrap}
        return run(
            self.controller.url, "adopt", self.name, self.topic, "--segments", "2", *options, environment=environment
        )

    def is_open(self) -> bool:
        """Write a message; return whether it was accepted."""
        errors: list[Any] = []
        producer = KafkaProducer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.name, "x", partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(60) == 0
        # By identity: confluent-kafka's comparison of an error with None leaves an exception that shows elsewhere.
        [error] = errors
        return error is None

    @property
    def scalable(self) -> ScalableTopic:
        return ScalableTopic(self.topic, self.controller.client, self.bootstrap)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_adoption, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(kafka_adoption, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(draining, "DELAY_SECONDS", 0.1)
    monkeypatch.setattr(draining, "JITTER_SECONDS", 0.0)


@pytest.fixture
def plain(broker: EmbeddedBroker, controller: RunningController) -> PlainTopic:
    return PlainTopic(broker.bootstrap, controller)


def read(consumer: Any, count: int) -> list[tuple[bytes, int]]:
    """Receive and acknowledge until `count` messages have come."""
    received: list[tuple[bytes, int]] = []
    while len(received) < count:
        for message in consumer.consume(1_000, 60):
            received.append((message.key(), int(message.value())))
            if not isinstance(consumer, CheckpointConsumer):
                consumer.acknowledge(message)
    return received


def write_more(topic: ScalableTopic) -> None:
    """Continue every key, across a split."""
    with Producer(topic.config(), topic.name) as producer:
        for number in range(BEFORE, BEFORE + AFTER):
            if number == BEFORE + 2:
                producer.flush(60)
                topic.split(topic.active()[0]["segmentId"])
            for key in range(KEYS):
                producer.produce(str(number), key=f"key-{key}")
        assert producer.flush(60) == 0


def test_group_continues_and_reads_nothing_twice(plain: PlainTopic) -> None:
    stored = plain.messages()
    position = {0: 5, 1: 0, 2: len(stored[2])}
    plain.commit("billing", position)
    assert plain.adopt().exit_code == 0
    assert not plain.is_open()
    write_more(plain.scalable)
    unread = [message for partition, offset in position.items() for message in stored[partition][offset:]]
    later = [(f"key-{key}".encode(), number) for key in range(KEYS) for number in range(BEFORE, BEFORE + AFTER)]
    with StreamConsumer(plain.scalable.config(), plain.topic, "billing", "billing-1") as consumer:
        received = read(consumer, len(unread) + len(later))
        assert consumer.commit(60)
    assert Counter(received) == Counter(unread + later)
    # All partitions are drained before any segment is read, so every key is in order.
    numbers = [number for _, number in received]
    assert max(numbers[: len(unread)]) < BEFORE
    for key in {key for key, _ in received}:
        of_key = [number for each, number in received if each == key]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize("kind", ["queue", "checkpoint"])
def test_new_reader_gets_all_adopted_messages(plain: PlainTopic, kind: str) -> None:
    stored = plain.messages()
    assert plain.adopt().exit_code == 0
    write_more(plain.scalable)
    topic, config = plain.scalable, plain.scalable.config()
    expected = Counter(message for messages in stored.values() for message in messages)
    expected.update((f"key-{key}".encode(), number) for key in range(KEYS) for number in range(BEFORE, BEFORE + AFTER))
    if kind == "queue":
        topic.admin.put(f"{topic.path}/subscriptions/mail?type=QUEUE").raise_for_status()
        consumer: Any = QueueConsumer(config, topic.name, "mail")
    else:
        consumer = CheckpointConsumer(config, topic.name)
    with consumer:
        assert Counter(read(consumer, expected.total())) == expected


def test_deletion_spares_the_adopted_topic(plain: PlainTopic) -> None:
    plain.commit("billing", dict.fromkeys(range(PARTITIONS), 0))
    stored = plain.messages()
    assert plain.adopt().exit_code == 0
    plain.scalable.delete()
    assert plain.messages() == stored


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Every step of command and controller ends once before it and once after it; returns how often each was tried."""
    tried: Counter[str] = Counter()

    def mortal(owner: type, name: str) -> None:
        step: Callable[..., Any] = getattr(owner, name)

        @wraps(step)
        def run_step(*arguments: Any, **named: Any) -> Any:
            tried[f"before {name}"] += 1
            if tried[f"before {name}"] == 1:
                raise Crash(name)
            result = step(*arguments, **named)
            tried[f"after {name}"] += 1
            if tried[f"after {name}"] == 1:
                raise Crash(name)
            return result

        monkeypatch.setattr(owner, name, run_step)

    for name in ("inspect", "seal", "_read_settings", "_read_offsets", "_read_groups"):
        mortal(TopicAdoption, name)
    mortal(KafkaAdmin, "change_settings")
    for name in ("create", "set_position"):
        mortal(KafkaSegments, name)
    mortal(ScalableTopicService, "create_topic")
    return tried


@pytest.mark.timeout(900)
def test_adoption_is_repeated_after_any_end(plain: PlainTopic, deaths: Counter[str]) -> None:
    position = {0: 3, 1: 7, 2: 1}
    plain.commit("billing", position)
    attempts = 0
    while plain.adopt().exit_code != 0:
        attempts += 1
        assert attempts < 20
    assert attempts == len(deaths)
    assert len(deaths) == 18
    stored = plain.messages()
    unread = [message for partition, offset in position.items() for message in stored[partition][offset:]]
    with StreamConsumer(plain.scalable.config(), plain.topic, "billing", "billing-1") as consumer:
        assert Counter(read(consumer, len(unread))) == Counter(unread)


@pytest.mark.parametrize(
    "setting", [{"message.timestamp.after.max.ms": str(2**63 - 1)}, {"message.timestamp.type": "LogAppendTime"}]
)
def test_probes_of_an_open_topic_become_no_messages(
    broker: EmbeddedBroker, controller: RunningController, monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]
) -> None:
    plain = PlainTopic(broker.bootstrap, controller, **setting)
    with monkeypatch.context() as late:
        # The leaders have not applied the new settings.
        late.setattr(KafkaAdmin, "change_settings", lambda *_: None)
        with pytest.raises(SegmentStoreError):
            TopicAdoption(broker.connection, plain.name, timeout_seconds=2).seal(PARTITIONS)
    assert plain.adopt().exit_code == 0
    assert sum(TopicAdoption(broker.connection, plain.name).inspect().ends) == BEFORE * KEYS


def test_dry_run_changes_nothing(plain: PlainTopic) -> None:
    plain.commit("billing", {0: 5, 1: 6, 2: 7})
    result = plain.adopt("--dry-run", "--output", "json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["subscriptions"] == {"billing": [5, 6, 7]}
    assert (report["partitions"], report["dryRun"]) == (PARTITIONS, True)
    assert plain.is_open()
    assert plain.controller.client.get(plain.scalable.path).status_code == 404


def refusal(plain: PlainTopic) -> str:
    """Return what stands in the way; the topic stays open."""
    result = plain.adopt()
    assert (result.exit_code, result.stdout) == (1, "")
    assert plain.is_open()
    return result.stderr


def test_compacted_topic_is_refused(broker: EmbeddedBroker, controller: RunningController) -> None:
    plain = PlainTopic(broker.bootstrap, controller, **{"cleanup.policy": "compact"})
    result = plain.adopt()
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("its cleanup.policy is compact")


def test_group_of_unknown_position_is_refused(plain: PlainTopic) -> None:
    plain.commit("billing", {0: 5, 1: 5})
    assert "the group billing has no position in partition 2" in refusal(plain)


def test_group_with_consumers_is_refused(plain: PlainTopic) -> None:
    plain.commit("billing", {0: 5, 1: 5, 2: 5})
    with closing(KafkaConsumer({"bootstrap.servers": plain.bootstrap, "group.id": "billing"})) as consumer:
        consumer.subscribe([plain.name])
        assert consumer.consume(1, 60)
        assert "the group billing has consumers" in refusal(plain)


def test_open_transaction_is_refused(plain: PlainTopic) -> None:
    # So long that a busy machine does not end it.
    options = {"transactional.id": plain.name, "transaction.timeout.ms": 600_000}
    producer = KafkaProducer({"bootstrap.servers": plain.bootstrap, **options})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(plain.name, "1", "key-1")
    assert producer.flush(60) == 0
    assert "it has open transactions" in refusal(plain)
    producer.abort_transaction(60)


def test_written_topic_is_refused(plain: PlainTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = KafkaProducer({"bootstrap.servers": plain.bootstrap})

    def write(_: float) -> None:
        producer.produce(plain.name, "1", "key-1")
        assert producer.flush(60) == 0

    monkeypatch.setattr(kafka_adoption, "wait_quietly", write)
    assert "producers write to it" in refusal(plain)


def test_controller_refuses_open_and_missing_topics(plain: PlainTopic) -> None:
    for name, status in ((plain.name, 412), ("no-such-topic", 404)):
        body = {"kafkaTopic": name, "partitions": PARTITIONS, "subscriptions": {}}
        assert plain.controller.client.post(f"{plain.scalable.path}/migrate", json=body).status_code == status
    assert plain.is_open()
    assert plain.controller.client.get(plain.scalable.path).status_code == 404


def test_second_adoption_is_refused_until_deletion(plain: PlainTopic) -> None:
    assert plain.adopt().exit_code == 0
    first, plain.topic = plain.topic, f"{plain.topic}-again"
    refused = plain.adopt()
    assert refused.exit_code != 0
    assert f"{first} has adopted {plain.name}" in refused.output
    assert plain.controller.client.get(plain.scalable.path).status_code == 404
    ScalableTopic(first, plain.controller.client, plain.bootstrap).delete()
    assert plain.adopt().exit_code == 0


def test_missing_or_foreign_topics_are_refused(plain: PlainTopic) -> None:
    plain.name = "no-such-topic"
    assert "no-such-topic is not in Kafka" in plain.adopt().stderr
    plain.name = "__consumer_offsets"
    assert "__consumer_offsets is not an application's topic" in plain.adopt().stderr


def test_existing_scalable_topic_is_refused(plain: PlainTopic) -> None:
    plain.scalable.create()
    assert "exists already, without partitions of" in refusal(plain)
