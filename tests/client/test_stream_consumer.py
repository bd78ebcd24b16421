"""Stream consumers on real segments: everything arrives once acknowledged, in order per key, and nothing is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.sessions import draining
from anabranch.local.broker import EmbeddedBroker
from anabranch_client.errors import AssignmentLost, ConsumerReplaced, SubscriptionConflict, TopicNotFound
from anabranch_client.stream_consumer import StreamConsumer
from schemas.kafka.connection import KafkaConnection
from tests.client.consuming import KEYS, Checker, ConsumerProcess, NumberedTopic, reading
from tests.controller.conftest import run_controller
from tests.controller.processes import ControllerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.process]

BRIEF, LONG = 0.3, 600.0
"""Grace periods: one that ends within a test, and one that does not."""


@pytest.fixture(scope="module")
def kafka(broker: EmbeddedBroker) -> str:
    return broker.bootstrap


@pytest.fixture(scope="module")
def kafka_segments(kafka: str) -> KafkaSegments:
    return KafkaSegments(KafkaConnection(kafka))


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the controller look more often for drained segments."""
    monkeypatch.setattr(draining, "DELAY_SECONDS", 0.1)
    monkeypatch.setattr(draining, "JITTER_SECONDS", 0.0)


@contextmanager
def numbered(
    folder: Path, segments: KafkaSegments, name: str, count: int, grace: float = LONG
) -> Iterator[NumberedTopic]:
    """A topic of `count` segments at a controller of its own."""
    bootstrap = segments._kafka.connection.bootstrap
    with run_controller(folder / "layouts.db", bootstrap, segments=segments, grace_seconds=grace) as running:
        topic = NumberedTopic(f"topic://acme/streams/{name}", bootstrap, running.client)
        topic.create(count)
        yield topic


def receive(consumer: StreamConsumer, count: int) -> list[tuple[bytes, int]]:
    """Receive `count` messages; the last one stays in `consumer.newest`."""
    received = []
    while len(received) < count:
        messages = consumer.consume(count - len(received), 60)
        assert messages
        for message in messages:
            received.append((message.key() or b"", int(message.value() or b"")))
    return received


def test_order_kept_across_splits_and_merges(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "order", 2) as topic, ExitStack() as stack:
        checker = Checker(topic)
        for name in ("a", "b"):
            consumer = stack.enter_context(topic.consumer(name))
            stack.enter_context(reading(consumer, checker))
        topic.write(20)
        for change in (
            lambda: topic.split(0),
            lambda: topic.split(1),
            lambda: topic.merge(2, 3),
            lambda: topic.split(6),
            lambda: topic.merge(4, 5),
            lambda: topic.merge(8, 9),
        ):
            change()
            topic.write(20)
        wait_until(checker.is_complete, 180)
        assert sum(checker.newest.values()) == KEYS * (7 * 20 - 1)


def test_children_wait_until_parent_is_acknowledged(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "drain", 1) as topic, topic.consumer("a") as consumer:
        topic.write(2)
        topic.split(0)
        topic.write(1)
        assert {number for _, number in receive(consumer, 2 * KEYS - 1)} == {0, 1}
        assert consumer.consume(0, 60) == []
        (last,) = consumer.consume(2, 60)
        assert consumer.assignment() == [0]
        consumer.acknowledge(last)
        assert receive(consumer, KEYS)
        assert consumer.assignment() == [1, 2]


def test_acknowledgement_covers_all_segments(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "cumulative", 3) as topic:
        topic.write(5)
        with topic.consumer("a") as consumer:
            received = receive(consumer, 4 * KEYS)
            (last,) = consumer.consume(1, 60)
            consumer.acknowledge(last)
            assert consumer.commit(60)
            assert sum(topic.committed().values()) == 4 * KEYS + 1
        with topic.consumer("b") as successor:
            received += receive(successor, KEYS - 1)
            assert len(set(received)) == 5 * KEYS - 1
            assert not successor.consume(1, 0)


def test_leaving_consumer_hands_over_without_repeats(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "leave", 4) as topic, ExitStack() as stack:
        topic.write(10)
        checker = Checker(topic)
        remaining = stack.enter_context(topic.consumer("b"))
        with topic.consumer("a") as leaving:
            wait_until(lambda: len(leaving.assignment()) == len(remaining.assignment()) == 2, 60)
            with reading(leaving, checker), reading(remaining, checker):
                wait_until(checker.is_complete, 120)
        topic.write(10)
        with reading(remaining, checker):
            wait_until(checker.is_complete, 120)
        assert checker.redelivered == 0
        assert remaining.assignment() == [0, 1, 2, 3]


def test_lost_consumer_cannot_acknowledge(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "fenced", 1) as topic:
        topic.write(1)
        frozen = ConsumerProcess(topic, "a", acknowledges=False)
        try:
            received = 0
            for batch in frozen.lines():
                received += len(batch)
                if received == KEYS:
                    break
            topic.write(1)
            frozen.freeze()
            topic.call("DELETE", "/subscriptions/s/consumers/a")
            with topic.consumer("b") as successor:
                receive(successor, 2 * KEYS - 1)
                (last,) = successor.consume(1, 60)
                successor.acknowledge(last)
                assert successor.commit(60)
                assert topic.committed() == {0: 2 * KEYS}
                frozen.send("acknowledge")
                frozen.thaw()
                assert next(line for line in frozen.lines() if isinstance(line, str)) == "lost"
                assert topic.committed() == {0: 2 * KEYS}
        finally:
            frozen.kill()


@pytest.mark.parametrize("successor", ["a", "b"])
def test_killed_consumer_is_replaced(tmp_path: Path, kafka_segments: KafkaSegments, successor: str) -> None:
    with numbered(tmp_path, kafka_segments, f"killed-{successor}", 2, BRIEF) as topic:
        topic.write(10)
        checker = Checker(topic)
        killed = ConsumerProcess(topic, "a", acknowledges=True)
        try:
            for batch in killed.lines():
                for key, number in batch:
                    checker.receive(key.encode(), number)
                if sum(checker.newest.values()) > KEYS:
                    break
        finally:
            killed.kill()
        topic.split(0)
        topic.write(10)
        with topic.consumer(successor) as consumer, reading(consumer, checker):
            wait_until(checker.is_complete, 180)


def test_reading_goes_on_while_controller_is_killed(tmp_path: Path, kafka: str) -> None:
    process = ControllerProcess(tmp_path, "kafka", kafka)
    with ExitStack() as stack:
        with process.life() as (client, _):
            topic = NumberedTopic("topic://acme/streams/controller", kafka, client)
            topic.create(2)
            topic.write(5)
            checker = Checker(topic)
            layout = topic.layout()
            consumer = stack.enter_context(topic.consumer("a"))
            stack.enter_context(reading(consumer, checker))
            wait_until(checker.is_complete, 120)
        wait_until(lambda: not consumer.is_connected, 60)
        topic.write(5, layout)
        wait_until(checker.is_complete, 120)
        assert consumer.assignment() == [0, 1]
        process.port = urlsplit(process.url).port or 0
        with process.life() as (client, _):
            topic.client = client
            topic.split(1)
            topic.write(5)
            wait_until(checker.is_complete, 180)
            assert consumer.assignment() == [0, 2, 3]
            assert checker.redelivered == 0


def test_revoked_segments_may_be_acknowledged(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    revoked: list[list[int]] = []

    def acknowledge(consumer: StreamConsumer, segments: list[int]) -> None:
        revoked.append(segments)
        consumer.acknowledge(newest[-1])

    with numbered(tmp_path, kafka_segments, "revoke", 2) as topic:
        topic.write(1)
        with topic.consumer("a", on_revoke=acknowledge) as first:
            newest = []
            while len(newest) < KEYS:
                messages = first.consume(KEYS, 60)
                assert messages
                newest += messages
            with topic.consumer("b") as second:
                wait_until(lambda: (not first.consume(1, 0)) and revoked and second.assignment(), 60)
                assert revoked == [[1]]
                assert second.assignment() == [1]
                assert first.commit(60)
                assert sum(topic.committed().values()) == KEYS
                assert second.consume(1, 0) == []


def test_paused_consumer_keeps_its_segments(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "pause", 2) as topic, topic.consumer("a") as consumer:
        consumer.pause()
        topic.write(1)
        wait_until(lambda: consumer.assignment() == [0, 1], 60)
        assert consumer.consume(1, 0) == []
        consumer.resume()
        assert len(receive(consumer, KEYS)) == KEYS


def test_segment_that_ends_with_transaction_is_drained(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "transaction", 1) as topic, topic.consumer("a") as consumer:
        checker = Checker(topic)
        topic.write_transaction(1)
        topic.split(0)
        topic.write(1)
        with reading(consumer, checker):
            wait_until(checker.is_complete, 120)
        assert consumer.assignment() == [1, 2]


def test_refusals_are_typed_errors(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "refused", 1) as topic:
        unknown = StreamConsumer(topic.config, "topic://acme/streams/unknown", "s", "a")
        with unknown, pytest.raises(TopicNotFound):
            unknown.poll(60)
        topic.call("PUT", "/subscriptions/queue?type=QUEUE")
        wrong_type = StreamConsumer(topic.config, topic.topic, "queue", "a")
        with wrong_type, pytest.raises(SubscriptionConflict):
            wrong_type.poll(60)
        with topic.consumer("a") as first:
            wait_until(first.assignment, 60)
            with topic.consumer("a"), pytest.raises(ConsumerReplaced):
                first.poll(60)


def test_message_of_left_segment_is_not_acknowledged(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "left", 1) as topic, topic.consumer("a") as consumer:
        topic.write(1)
        message = consumer.poll(60)
        assert message is not None
        topic.call("DELETE", "/subscriptions/s/consumers/a")
        with topic.consumer("A") as successor:
            wait_until(successor.assignment, 60)
            with pytest.raises(AssignmentLost):
                consumer.acknowledge(message)
            assert receive(successor, 1) == [(message.key(), 0)]


def test_end_of_process_stores_acknowledgements(tmp_path: Path, kafka_segments: KafkaSegments) -> None:
    with numbered(tmp_path, kafka_segments, "exit", 1) as topic:
        topic.write(1)
        # A busy machine does not end such a session.
        process, received = ConsumerProcess(topic, "a", acknowledges=False, session_timeout_ms="120000"), 0
        try:
            for batch in process.lines():
                if (received := received + len(batch)) == KEYS:
                    process.end()
            assert process.process.wait(60) == 0
        finally:
            process.kill()
        assert topic.committed() == {0: KEYS}
