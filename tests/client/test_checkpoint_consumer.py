"""Checkpoint consumers on real segments: restarts from checkpoints and from times, across splits and merges."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Message

from anabranch.local.broker import EmbeddedBroker
from anabranch_client.checkpoint_consumer import CheckpointConsumer
from anabranch_client.checkpoints import Checkpoint
from anabranch_client.errors import CheckpointOfOtherTopic, TopicRemoved
from tests.client.consuming import KEYS, Checker, NumberedTopic
from tests.controller.conftest import RunningController

pytestmark = pytest.mark.broker


@pytest.fixture
def topic(controller: RunningController, broker: EmbeddedBroker) -> NumberedTopic:
    topic = NumberedTopic(f"topic://{controller.new_namespace()}/replayed", broker.bootstrap, controller.client)
    topic.create(2)
    return topic


def reader(topic: NumberedTopic, checkpoint: bytes | None = None) -> CheckpointConsumer:
    return CheckpointConsumer(topic.config, topic.topic, checkpoint)


def receive(consumer: CheckpointConsumer, count: int, checker: Checker | None = None) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        batch = consumer.consume(count - len(messages), 60)
        assert batch
        messages += batch
    for message in messages if checker else ():
        checker.receive(message.key() or b"", int(message.value() or b""))
    return messages


def test_restart_from_checkpoints_skips_nothing(topic: NumberedTopic) -> None:
    checker, checkpoint = Checker(topic), None
    topic.write(1)
    for part in range(12):
        if part == 1:
            topic.split(0)
            topic.write(1)
            topic.split(1)
            topic.merge(2, 3)
            topic.write(4)
        with reader(topic, checkpoint) as consumer:
            receive(consumer, KEYS // 2, checker)
            checkpoint = consumer.checkpoint()
    assert checker.is_complete()
    assert checker.redelivered == 0
    with reader(topic, checkpoint) as consumer:
        assert consumer.consume(1, 0.5) == []


def test_running_reader_follows_splits_and_merges(topic: NumberedTopic) -> None:
    checker = Checker(topic)
    topic.write(1)
    with reader(topic) as consumer:
        receive(consumer, KEYS, checker)
        topic.split(0)
        topic.split(1)
        topic.write(2)
        topic.merge(2, 3)
        topic.write(1)
        receive(consumer, 3 * KEYS, checker)
        assert checker.is_complete()
        assert checker.redelivered == 0


def test_seek_goes_to_the_first_message_at_a_time(topic: NumberedTopic) -> None:
    topic.write(1)
    topic.split(0)
    topic.write(1)
    middle = int(time.time() * 1_000) + 1
    while time.time() * 1_000 <= middle:
        pass
    topic.write(1)
    topic.merge(2, 3)
    topic.write(1)
    with reader(topic) as consumer:
        for _ in range(2):
            consumer.seek(middle)
            assert {int(message.value() or b"") for message in receive(consumer, 2 * KEYS)} == {2, 3}
            assert consumer.consume(1, 0.2) == []
        consumer.seek(0)
        assert len(receive(consumer, 4 * KEYS)) == 4 * KEYS


def test_segment_that_ends_with_transaction_is_left(topic: NumberedTopic) -> None:
    checker = Checker(topic)
    topic.write_transaction(1)
    topic.split(0)
    topic.write(1)
    with reader(topic) as consumer:
        receive(consumer, 2 * KEYS, checker)
        assert checker.is_complete()


def test_paused_reader_delivers_nothing(topic: NumberedTopic) -> None:
    topic.write(1)
    with reader(topic) as consumer:
        consumer.pause()
        assert consumer.poll(0.3) is None
        consumer.resume()
        assert consumer.poll(60) is not None


def test_foreign_checkpoint_and_deleted_topic_are_errors(topic: NumberedTopic) -> None:
    with pytest.raises(CheckpointOfOtherTopic):
        reader(topic, Checkpoint("topic://acme/shop/other", 1, {}).to_bytes())
    with reader(topic) as consumer:
        topic.call("DELETE", "?force=true")
        with pytest.raises(TopicRemoved):
            consumer.poll(60)
