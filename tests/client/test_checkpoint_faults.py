"""Checkpoint consumers when Kafka fails between messages: what was not returned is not passed by the position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from anabranch_client import checkpoint_consumer as module
from anabranch_client.checkpoint_consumer import CheckpointConsumer
from anabranch_client.checkpoints import Checkpoint
from anabranch_client.errors import ClientClosed, SegmentUnreadable, TopicRemoved
from anabranch_client.layout import Layout
from tests.controller.conftest import NOWHERE

TOPIC = "topic://acme/shop/orders"
CONFIG = {"bootstrap.servers": NOWHERE, "anabranch.controller.url": f"http://{NOWHERE}", "log_level": 0}


def segment(id: int, start: int, end: int, state: str) -> dict[str, object]:
    return {"segmentId": id, "hashRange": {"start": start, "end": end}, "state": state}


LAYOUT = Layout.from_record(
    TOPIC,
    {
        "epoch": 1,
        "createdAtMs": 5,
        "segments": {
            "0": {**segment(0, 0, 0x7FFF, "SEALED"), "childIds": [2]},
            "1": segment(1, 0x8000, 0xFFFF, "ACTIVE"),
            "2": {**segment(2, 0, 0x7FFF, "ACTIVE"), "parentIds": [0]},
        },
    },
)


class FixedWatch:
    """A watch session that knows one layout."""

    error = None
    layout = LAYOUT

    def __init__(self, *_: object) -> None:
        pass

    def first(self, timeout: float) -> Layout:
        return LAYOUT

    def close(self) -> None:
        pass


def record(id: int, offset: int, code: int | None = None) -> Message:
    """Return a message of a segment, or an error."""
    error = None if code is None else KafkaError(code)
    return Message(topic=LAYOUT.segments[id].kafka_topic, partition=0, offset=offset, error=error)


class FailingKafka:
    """A consumer whose answers are prepared; each segment has two messages."""

    def __init__(self, _: object) -> None:
        self.answers: deque[list[Message]] = deque()
        self.faults: deque[int | None] = deque()
        """Codes with which the next questions about offsets fail; None: not."""
        self.assigned: dict[str, int] = {}

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.update((partition.topic, partition.offset) for partition in partitions)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            del self.assigned[partition.topic]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._fail()
        return 0, 2

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._fail()
        return [TopicPartition(partition.topic, 0, 1) for partition in partitions]

    def consume(self, limit: int, timeout: float) -> list[Message]:
        return self.answers.popleft() if self.answers else []

    def close(self) -> None:
        pass

    def _fail(self) -> None:
        if self.faults and (code := self.faults.popleft()) is not None:
            raise KafkaException(KafkaError(code))


@pytest.fixture(autouse=True)
def without_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LayoutWatch", FixedWatch)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointConsumer]:
    monkeypatch.setattr(module, "Consumer", FailingKafka)
    with CheckpointConsumer(CONFIG, TOPIC) as consumer:
        yield consumer


def kafka_of(consumer: CheckpointConsumer) -> Any:
    return consumer._consumer


def positions(consumer: CheckpointConsumer) -> dict[int, int]:
    return dict(Checkpoint.from_bytes(consumer.checkpoint()).offsets)


def test_messages_before_an_error_are_returned(consumer: CheckpointConsumer) -> None:
    denied = record(1, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    kafka_of(consumer).answers.append([record(0, 0), denied, record(0, 1)])
    assert [message.offset() for message in consumer.consume(9, 0)] == [0, 1]
    assert positions(consumer) == {0: 2, 1: 0}
    with pytest.raises(SegmentUnreadable, match="check Kafka"):
        consumer.consume(9, 0)
    assert consumer.consume(9, 0) == []


def test_lost_position_stays_a_fault_until_a_seek(consumer: CheckpointConsumer) -> None:
    kafka_of(consumer).answers.append([record(1, 0), record(0, 0, KafkaError._AUTO_OFFSET_RESET)])
    assert [message.offset() for message in consumer.consume(9, 0)] == [0]
    for _ in range(2):
        with pytest.raises(SegmentUnreadable, match="seek by time"):
            consumer.consume(9, 0)
    consumer.seek(1_000)
    assert consumer.consume(9, 0) == []


def test_failure_at_an_end_loses_no_messages(consumer: CheckpointConsumer) -> None:
    kafka = kafka_of(consumer)
    kafka.answers.append([record(0, 0), record(0, 1), record(0, 2, KafkaError._PARTITION_EOF), record(1, 0)])
    assert consumer.consume(9, 0) != []
    assert len(kafka.assigned) == 2
    kafka.faults.append(KafkaError._TIMED_OUT)
    with pytest.raises(SegmentUnreadable):
        consumer.consume(9, 0)
    assert positions(consumer) == {0: 2, 1: 1}
    kafka.answers.append([record(1, 1)])
    assert [message.offset() for message in consumer.consume(9, 0)] == [1]
    assert positions(consumer) == {1: 2, 2: 0}
    assert kafka.assigned.keys() == {LAYOUT.segments[id].kafka_topic for id in (1, 2)}


def test_failure_at_the_start_leaves_no_segment_out(consumer: CheckpointConsumer) -> None:
    kafka_of(consumer).faults.extend([None, KafkaError._TIMED_OUT])
    with pytest.raises(SegmentUnreadable):
        consumer.consume(9, 0)
    assert consumer.consume(9, 0) == []
    assert kafka_of(consumer).assigned == {LAYOUT.segments[id].kafka_topic: 0 for id in (0, 1)}


@pytest.mark.parametrize(
    "codes",
    [
        (KafkaError._TRANSPORT, KafkaError._DESTROY_BROKER),
        (KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH),
        (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
)
def test_restarting_broker_is_waited_for(consumer: CheckpointConsumer, codes: tuple[int, ...]) -> None:
    kafka_of(consumer).faults.extend([*codes, None])
    kafka_of(consumer).answers.append([record(0, 0)])
    assert [message.offset() for message in consumer.consume(9, 0)] == [0]
    assert not kafka_of(consumer).faults


def test_seek_waits_for_restarting_broker(consumer: CheckpointConsumer) -> None:
    kafka_of(consumer).faults.extend([None, KafkaError.LEADER_NOT_AVAILABLE, None])
    consumer.seek(1_000)
    assert positions(consumer) == {0: 1, 1: 1}


def test_unknown_segment_is_given_up_in_time(consumer: CheckpointConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KAFKA_SECONDS", 0.0)
    faults = kafka_of(consumer).faults
    faults.extend([KafkaError._UNKNOWN_PARTITION, None])
    with pytest.raises(SegmentUnreadable):
        consumer.consume(9, 0)
    assert len(faults) == 1


def test_segment_of_deleted_topic_is_not_waited_for(
    consumer: CheckpointConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KAFKA_SECONDS", 3_600.0)
    kafka = kafka_of(consumer)

    def delete_topic() -> None:
        monkeypatch.setattr(consumer._watch, "layout", None)
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    monkeypatch.setattr(kafka, "_fail", delete_topic)
    with pytest.raises(SegmentUnreadable):
        consumer.consume(9, 0)
    with pytest.raises(TopicRemoved):
        consumer.consume(9, 0)


def test_failed_seek_changes_nothing(consumer: CheckpointConsumer) -> None:
    kafka_of(consumer).answers.append([record(1, 0)])
    assert consumer.consume(9, 0) != []
    kafka_of(consumer).faults.extend([None, KafkaError._TIMED_OUT])
    with pytest.raises(SegmentUnreadable):
        consumer.seek(1_000)
    assert positions(consumer) == {0: 0, 1: 1}
    assert kafka_of(consumer).assigned.keys() == {LAYOUT.segments[id].kafka_topic for id in (0, 1)}


def test_waiting_reader_lets_other_threads_in() -> None:
    start = Checkpoint(TOPIC, 5, {0: 0, 1: 0}).to_bytes()
    with ThreadPoolExecutor(2) as threads:
        with CheckpointConsumer(CONFIG, TOPIC, start) as consumer:
            reading = threads.submit(consumer.consume, 1, -1)
            for call in (
                consumer.checkpoint,
                consumer.pause,
                consumer.checkpoint,
                consumer.resume,
                consumer.checkpoint,
            ):
                threads.submit(call).result(60)
        with pytest.raises(ClientClosed):
            reading.result(60)
