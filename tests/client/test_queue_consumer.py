"""Queue consumers on real segments: every message arrives, and comes again until it is acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from anabranch.local.broker import EmbeddedBroker
from anabranch_client.errors import AssignmentLost, TopicRemoved
from anabranch_client.queue_consumer import QueueConsumer
from anabranch_client.received import ReceivedMessage
from tests.client.consuming import KEYS, NumberedTopic, repeating
from tests.controller.conftest import RunningController
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

SUBSCRIPTION = "q"


@pytest.fixture
def topic(controller: RunningController, broker: EmbeddedBroker) -> NumberedTopic:
    topic = NumberedTopic(f"topic://{controller.new_namespace()}/queued", broker.bootstrap, controller.client)
    topic.create(2)
    topic.call("PUT", f"/subscriptions/{SUBSCRIPTION}?type=QUEUE")
    return topic


def queue(topic: NumberedTopic) -> QueueConsumer:
    return QueueConsumer(topic.config, topic.topic, SUBSCRIPTION)


def receive(consumer: QueueConsumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        more = consumer.consume(count - len(messages), 60)
        assert more
        messages += more
    return messages


def content(message: ReceivedMessage) -> tuple[bytes, int]:
    return message.key() or b"", int(message.value() or b"")


def position(message: ReceivedMessage) -> tuple[int, int]:
    return message.segment(), message.offset()


@contextmanager
def working(consumer: QueueConsumer, received: set[tuple[bytes, int]]) -> Iterator[None]:
    """Receive in a thread during the block; acknowledge in any order, and only the second time now and then."""
    chance = random.Random(35)

    def work() -> None:
        messages = consumer.consume(50, 0.1)
        chance.shuffle(messages)
        for message in messages:
            if chance.random() < 0.05:
                consumer.negative_acknowledge(message)
                continue
            received.add(content(message))
            with suppress(AssignmentLost):
                consumer.acknowledge(message)

    with repeating(work):
        yield


def test_every_message_arrives_across_splits_and_merges(topic: NumberedTopic) -> None:
    received: set[tuple[bytes, int]] = set()
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(working(stack.enter_context(queue(topic)), received))
        topic.write(10)
        for change in (lambda: topic.split(0), lambda: topic.split(1), lambda: topic.merge(2, 3)):
            change()
            topic.write(10)
        wanted = {(key, number) for key, count in topic.sent.items() for number in range(count)}
        wait_until(lambda: len(received) == len(wanted), 180)
    assert received == wanted


def test_acknowledged_messages_do_not_come_again(topic: NumberedTopic) -> None:
    topic.write(2)
    topic.split(0)
    topic.write(1)
    with queue(topic) as consumer:
        messages = receive(consumer, 3 * KEYS)
        assert len({content(message) for message in messages}) == 3 * KEYS
        random.Random(35).shuffle(messages)
        for message in messages:
            consumer.acknowledge(message)
        wait_until(lambda: consumer.consume(1, 0) == [] and consumer.assignment() == [1, 2, 3], 120)
        assert consumer.commit(60)
    with queue(topic) as successor:
        wait_until(lambda: successor.consume(1, 0) == [] and successor.assignment() == [1, 2, 3], 120)
        assert successor.consume(1, 1) == []


def test_unacknowledged_messages_come_again(topic: NumberedTopic) -> None:
    topic.write(3)
    with queue(topic) as consumer:
        messages = receive(consumer, 3 * KEYS)
        missed = next(message for message in messages if message.offset() == 2)
        for message in messages:
            if message is not missed:
                consumer.acknowledge(message)
        assert consumer.commit(60)
    again = {position(m) for m in messages if m.segment() == missed.segment() and m.offset() >= missed.offset()}
    with queue(topic) as successor:
        repeated = receive(successor, len(again))
        assert {position(message) for message in repeated} == again
        for message in repeated:
            successor.acknowledge(message)
        assert successor.commit(60)
        assert sum(topic.committed(SUBSCRIPTION).values()) == 3 * KEYS


def test_refused_message_comes_again_alone(topic: NumberedTopic) -> None:
    topic.write(1)
    with queue(topic) as consumer:
        messages = receive(consumer, KEYS)
        consumer.negative_acknowledge(messages[5])
        (repeated,) = receive(consumer, 1)
        assert position(repeated) == position(messages[5])
        assert consumer.consume(1, 0.5) == []


def test_each_segment_belongs_to_one_consumer(topic: NumberedTopic) -> None:
    with queue(topic) as first:
        wait_until(lambda: first.assignment() == [0, 1], 60)
        with queue(topic) as second:
            wait_until(lambda: sorted(first.assignment() + second.assignment()) == [0, 1], 60)
        wait_until(lambda: first.assignment() == [0, 1], 60)
        topic.call("DELETE", "?force=true")
        with pytest.raises(TopicRemoved):
            first.poll(60)
