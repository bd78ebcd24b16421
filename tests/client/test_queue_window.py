"""Queue consumers on segments in memory: positions, windows, repetitions, and segments that are read to their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from anabranch_client import queue_consumer, segment_reader
from anabranch_client.errors import AssignmentLost, ClientSettingsError, TopicRemoved
from anabranch_client.layout import Layout
from anabranch_client.queue_consumer import OffsetWindow, QueueConsumer
from tests.controller.conftest import NOWHERE
from tests.waiting import wait_until

TOPIC = "topic://acme/shop/orders"
CONFIG = {"bootstrap.servers": NOWHERE, "anabranch.controller.url": f"http://{NOWHERE}", "log_level": 0}


def layout(epoch: int) -> Layout:
    """The layout before and after the split of segment 0."""
    root = {"segmentId": 0, "hashRange": {"start": 0, "end": 0xFFFF}, "state": "SEALED" if epoch else "ACTIVE"}
    children = {
        str(id): {"segmentId": id, "hashRange": {"start": start, "end": end}, "state": "ACTIVE", "parentIds": [0]}
        for id, start, end in ((1, 0, 0x7FFF), (2, 0x8000, 0xFFFF))
    }
    segments = {"0": {**root, "childIds": [1, 2] if epoch else []}, **(children if epoch else {})}
    return Layout.from_record(TOPIC, {"epoch": epoch, "createdAtMs": 5, "segments": segments})


NAMES = [layout(1).segments[id].kafka_topic for id in range(3)]


class FixedWatch:
    """A watch session whose layout the test sets."""

    def __init__(self, _: object, topic: str, on_change: Callable[[], None]) -> None:
        self.topic, self.layout, self.error, self.on_change = topic, layout(0), None, on_change

    def first(self, timeout: float) -> Layout:
        return self.layout

    def close(self) -> None:
        pass


def record(offset: int, code: int | None = None) -> Message:
    """Return a message, or the end of its segment."""
    return Message(value=b"1", offset=offset, error=None if code is None else KafkaError(code))


class MemoryKafka:
    """The only member of the groups of all segments."""

    ends: ClassVar[Counter[str]]
    committed: ClassVar[Counter[str]]
    members: ClassVar[dict[str, MemoryKafka]]

    def __init__(self, _: object) -> None:
        self.is_paused, self.is_new, self.ended_at = False, True, -1

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        (self.topic,), self.on_assign, self.on_lost = topics, on_assign, on_lost
        self.members[self.topic] = self

    def expel(self) -> None:
        """End the lease at the next poll, and begin another."""
        self.is_new = True

    def poll(self, timeout: float) -> Message | None:
        if self.is_new:
            self.is_new, self.ended_at = False, -1
            self.on_lost(self, [])
            self.position = self.committed[self.topic]
            self.on_assign(self, [TopicPartition(self.topic, 0)])
        if self.is_paused:
            return None
        if self.position < self.ends[self.topic]:
            self.position += 1
            return record(self.position - 1)
        if self.ended_at == self.position:
            return None
        self.ended_at = self.position
        return record(self.position, KafkaError._PARTITION_EOF)

    def consume(self, limit: int, timeout: float) -> list[Message]:
        return []

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self.committed[self.topic] = offsets[0].offset
        return offsets

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[self.topic]

    def assignment(self) -> list[TopicPartition]:
        return []

    def pause(self, _: object) -> None:
        self.is_paused = True

    def resume(self, _: object) -> None:
        self.is_paused = False

    def close(self) -> None:
        del self.members[self.topic]


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> type[MemoryKafka]:
    for name, value in (("ends", Counter()), ("committed", Counter()), ("members", {})):
        monkeypatch.setattr(MemoryKafka, name, value, raising=False)
    monkeypatch.setattr(segment_reader, "Consumer", MemoryKafka)
    monkeypatch.setattr(queue_consumer, "LayoutWatch", FixedWatch)
    return MemoryKafka


@pytest.fixture
def consumer() -> Iterator[QueueConsumer]:
    with QueueConsumer(CONFIG, TOPIC, "s", max_unacknowledged=10) as consumer:
        yield consumer


def receive(consumer: QueueConsumer, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        more = consumer.consume(count - len(messages), 60)
        assert more
        messages += more
    return messages


@given(st.permutations(range(12)), st.integers(0, 12))
def test_position_is_the_lowest_unacknowledged(order: list[int], count: int) -> None:
    window = OffsetWindow(1)
    for offset in range(12):
        window.deliver([100 + offset])
    for offset in order[:count]:
        window.acknowledge(100 + offset)
        window.acknowledge(100 + offset)
    assert window.position == 100 + min(order[count:], default=12)
    assert len(window) == 12 - count


def test_position_waits_for_unacknowledged(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 5
    messages = receive(consumer, 5)
    for number in (4, 0, 2, 3):
        consumer.acknowledge(messages[number])
    assert consumer.commit(60)
    assert kafka.committed[NAMES[0]] == 1
    consumer.acknowledge(messages[1])
    assert consumer.commit(60)
    assert kafka.committed[NAMES[0]] == 5


def test_window_bounds_what_is_unacknowledged(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 50
    messages = receive(consumer, 10)
    assert consumer.consume(1, 0.1) == []
    for message in messages[1:]:
        consumer.acknowledge(message)
    assert consumer.consume(1, 0.1) == []
    consumer.acknowledge(messages[0])
    assert [message.offset() for message in receive(consumer, 10)] == list(range(10, 20))


def test_negative_acknowledgement_repeats_once(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 10
    messages = receive(consumer, 10)
    consumer.negative_acknowledge(messages[3])
    consumer.negative_acknowledge(messages[3])
    consumer.negative_acknowledge(messages[5])
    consumer.acknowledge(messages[5])
    assert [message.offset() for message in receive(consumer, 1)] == [3]
    assert consumer.consume(1, 0.1) == []
    for message in messages:
        consumer.acknowledge(message)
    assert consumer.commit(60)
    assert kafka.committed[NAMES[0]] == 10


def test_message_that_always_fails_lets_others_through(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 10
    acknowledged: set[int] = set()

    def is_done() -> bool:
        for message in consumer.consume(1, 60):
            if message.offset() == 0:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
                acknowledged.add(message.offset())
        return len(acknowledged) == 9

    wait_until(is_done, 60)


def test_lost_lease_repeats_from_the_position(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 4
    messages = receive(consumer, 4)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    assert consumer.commit(60)
    kafka.members[NAMES[0]].expel()
    assert [message.offset() for message in receive(consumer, 3)] == [1, 2, 3]
    consumer.negative_acknowledge(messages[3])
    assert consumer.consume(1, 0.1) == []
    with pytest.raises(AssignmentLost):
        consumer.acknowledge(messages[1])


def test_new_lease_of_a_paused_segment_is_read(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 100
    wait_until(lambda: NAMES[0] in kafka.members and kafka.members[NAMES[0]].is_paused, 60)
    kafka.members[NAMES[0]].expel()
    wait_until(lambda: not kafka.members[NAMES[0]].is_new, 60)
    # Those before the new lease may come first.
    assert 5 in [message.offset() for message in receive(consumer, 10)]


def test_sealed_segment_is_left_when_read(consumer: QueueConsumer, kafka: type[MemoryKafka]) -> None:
    kafka.ends[NAMES[0]] = 3
    messages = receive(consumer, 2)
    kafka.ends.update({NAMES[0]: 1, NAMES[1]: 2, NAMES[2]: 2})
    consumer._watch.layout = layout(1)  # type: ignore[misc]
    messages += receive(consumer, 6)
    assert consumer.assignment() == [0, 1, 2]
    for message in messages[1:]:
        consumer.acknowledge(message)
    assert consumer.commit(60)
    assert NAMES[0] in kafka.members
    consumer.acknowledge(messages[0])
    wait_until(lambda: consumer.consume(1, 0) == [] and consumer.assignment() == [1, 2], 60)
    assert kafka.committed == {NAMES[0]: 4, NAMES[1]: 2, NAMES[2]: 2}
    assert NAMES[0] not in kafka.members


def test_reader_that_cannot_start_is_tried_again(
    consumer: QueueConsumer, kafka: type[MemoryKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.ends[NAMES[2]] = 1
    consumer._watch.layout = layout(1)  # type: ignore[misc]
    with monkeypatch.context() as context:
        context.setattr(segment_reader, "Consumer", lambda _: int("no thread"))
        with pytest.raises(ClientSettingsError):
            consumer.consume(1, 60)
    assert [message.segment() for message in receive(consumer, 1)] == [2]


def test_deleted_topic_is_an_error(consumer: QueueConsumer) -> None:
    consumer._watch.layout = None  # type: ignore[misc]
    with pytest.raises(TopicRemoved):
        consumer.poll(60)
