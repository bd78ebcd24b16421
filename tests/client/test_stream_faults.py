"""Stream consumers on a Kafka client with faults: the application hears of each, and memory is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from anabranch_client import segment_reader
from anabranch_client.errors import ClientSettingsError, SegmentUnreadable
from anabranch_client.received import ConsumedSegment
from anabranch_client.segment_reader import SegmentReader
from anabranch_client.stream_consumer import StreamConsumer
from tests.controller.conftest import NOWHERE
from tests.waiting import wait_until

TOPIC = "topic://acme/shop/orders"
CONFIG = {"bootstrap.servers": NOWHERE, "anabranch.controller.url": f"http://{NOWHERE}", "log_level": 0}
ASSIGNMENT = {
    "topicCreatedAt": 5,
    "assignedSegments": [
        {
            "segmentId": 0,
            "hashRange": {"start": 0, "end": 0xFFFF},
            "underlyingTopicName": "segment://acme/shop/orders/0000-ffff-0",
        }
    ],
}
LARGE = bytes(3 * 1_048_576)


def record(offset: int, code: int | None = None) -> Message:
    """Return a large message, or an error."""
    return Message(value=LARGE, offset=offset, error=None if code is None else KafkaError(code))


class Position(NamedTuple):
    """The committed position of a partition, or why it is not known."""

    offset: int
    error: KafkaError | None = None


class FaultyKafka:
    """A member that owns its segment at once, and receives what `answer` returns for each number."""

    answer: Callable[[int], Message]

    def __init__(self, _: object) -> None:
        self.received, self.is_paused = 0, False
        self.positions: list[Position | KafkaException] = []
        """Answers to questions about the committed position."""
        self.assigned: list[int] = []

    def subscribe(self, topics: list[str], on_assign: Callable[..., None], **_: object) -> None:
        self._on_assign: Callable[..., None] | None = on_assign

    def assignment(self) -> list[TopicPartition]:
        return []

    def poll(self, timeout: float) -> Message | None:
        if self._on_assign is not None:
            on_assign, self._on_assign = self._on_assign, None
            on_assign(self, [TopicPartition("segment", 0)])
        if self.is_paused:
            return None
        self.received += 1
        return type(self).answer(self.received - 1)

    def consume(self, limit: int, timeout: float) -> list[Message]:
        return []

    def committed(self, _: object) -> list[Position]:
        answer = self.positions.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return [answer]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += [partition.offset for partition in partitions]

    def pause(self, _: object) -> None:
        self.is_paused = True

    def resume(self, _: object) -> None:
        self.is_paused = False

    def close(self) -> None:
        pass


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamConsumer]:
    monkeypatch.setattr(segment_reader, "Consumer", FaultyKafka)
    with StreamConsumer(CONFIG, TOPIC, "s", "a") as consumer:
        yield consumer


def kafka_of(consumer: StreamConsumer) -> Any:
    (reader,) = consumer._readers.values()
    return reader._consumer


def denied(number: int) -> Message:
    return record(0, KafkaError.TOPIC_AUTHORIZATION_FAILED)


def broken(number: int) -> Message:
    raise RuntimeError("a fault of the client")


@pytest.mark.parametrize("answer", [denied, broken])
def test_waiting_application_hears_of_fault(
    consumer: StreamConsumer, monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], Message]
) -> None:
    monkeypatch.setattr(FaultyKafka, "answer", answer, raising=False)
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(consumer.poll)
        consumer._adopt_assignment(ASSIGNMENT)
        with pytest.raises(SegmentUnreadable):
            polling.result(60)


def test_waiting_batches_are_bounded_by_bytes(consumer: StreamConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyKafka, "answer", record, raising=False)
    consumer._adopt_assignment(ASSIGNMENT)
    wait_until(lambda: kafka_of(consumer).is_paused, 60)
    assert kafka_of(consumer).received == 3
    assert [message.offset() for message in (consumer.poll(60), consumer.poll(60)) if message] == [0, 1]
    wait_until(lambda: kafka_of(consumer).received > 3, 60)


def test_moved_coordinator_is_asked_for_position_again(consumer: StreamConsumer) -> None:
    segment = ConsumedSegment(0, "segment", "group", "segment", 0)
    reader = SegmentReader(segment, {**consumer._kafka}, threading.Condition(), lambda _: True)
    kafka: Any = reader._consumer
    moved = Position(-1001, KafkaError(KafkaError.NOT_COORDINATOR))
    kafka.positions = [KafkaException(KafkaError(KafkaError._TRANSPORT)), moved, Position(7)]
    reader._rewind()
    assert kafka.assigned == [7]
    kafka.positions = [KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]
    with pytest.raises(KafkaException):
        reader._rewind()
    assert kafka.assigned == [7]


@pytest.mark.parametrize(
    "wrong",
    [
        {"enable.auto.commit": True},
        {"auto.offset.reset": "latest"},
        {"enable.partition.eof": False},
        {"group.protocol": "consumer"},
    ],
)
def test_setting_that_loses_messages_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ClientSettingsError, match="must be"):
        StreamConsumer({**CONFIG, **wrong}, TOPIC, "s", "a")
