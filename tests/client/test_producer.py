"""The producer at a real broker and a real controller: nothing lost and order per key, whatever happens to segments."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch.controller.segments.kafka_names import segment_of
from anabranch_client.errors import (
    AnabranchError,
    DeliveryTimeout,
    MessageTooLarge,
    QueueFull,
    TopicNotFound,
    TopicRemoved,
)
from anabranch_client.messages import DeliveryReport
from anabranch_client.producer import Producer
from tests.client.scalable_topic import Ledger, ScalableTopic
from tests.controller.conftest import RunningController
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

CHANGES = 8
KEYS = [f"key-{number}" for number in range(200)]


def produce_while(producer: Producer, ledger: Ledger, is_running: Callable[[], bool], most: int = 8_000) -> int:
    """Produce as fast as possible with at most `most` in flight; return the highest number in flight."""
    peak, number = 0, 0
    while is_running():
        for _ in range(200):
            key = KEYS[number % len(KEYS)]
            number += 1
            try:
                producer.produce(ledger.next_value(key), key, ledger.report)
            except QueueFull:
                producer.poll(0.1)
            else:
                ledger.count(key)
        peak = max(peak, len(producer))
        producer.poll(0)
        while len(producer) > most:
            producer.poll(0.1)
    return peak


def test_order_kept_over_splits_and_merges(topic: ScalableTopic) -> None:
    ledger, seed = Ledger(), random.Random(35)
    # Messages wait for a batch, so that thousands are in flight at every seal although few are written in all.
    config = topic.config(linger_ms=1_000)
    with Producer(config, topic.name) as producer, ThreadPoolExecutor(1) as changing:
        done = changing.submit(lambda: [topic.change(seed) for _ in range(CHANGES)])
        peak = produce_while(producer, ledger, lambda: not done.done(), 3_000)
        assert producer.flush(60) == 0
        kinds = done.result()
        resent = producer.resent
    assert {"split", "merge"} <= set(kinds)
    assert peak > 2_000
    assert resent > 1_000
    ledger.check(topic)


def test_reports_name_segment_offset_and_position(topic: ScalableTopic) -> None:
    topic.split(0)
    reports: list[tuple[AnabranchError | None, DeliveryReport]] = []
    with Producer(topic.config(), topic.name) as producer:
        for number in range(6):
            producer.produce(b"%d" % number, on_delivery=lambda *report: reports.append(report))
        assert producer.flush(60) == 0
    assert len(reports) == 6
    assert all(error is None for error, _ in reports)
    stored = {(segment, message.offset()): message.value() for segment, message in topic.messages()}
    assert stored == {(delivery.segment, delivery.offset): delivery.value for _, delivery in reports}
    assert {delivery.segment for _, delivery in reports} == {1, 2}
    created = topic.layout()["createdAtMs"]
    assert {delivery.position for _, delivery in reports} == {(created, *key) for key in stored}


def test_headers_and_time_stamp_survive_a_seal(topic: ScalableTopic) -> None:
    with Producer(topic.config(linger_ms=500), topic.name) as producer:
        producer.produce("before", "key", headers={"trace": b"1"}, timestamp=1_700_000_000_000)
        producer.flush(60)
        topic.split(0)
        producer.produce("after", "key", headers={"trace": b"2"}, timestamp=1_700_000_000_001)
    messages = [message for _, message in topic.messages()]
    assert [(m.value(), m.timestamp()[1], m.headers()) for m in messages] == [
        (b"before", 1_700_000_000_000, [("trace", b"1")]),
        (b"after", 1_700_000_000_001, [("trace", b"2")]),
    ]


def test_full_memory_refuses_until_polled(topic: ScalableTopic) -> None:
    with Producer(topic.config(queue_buffering_max_messages=10, linger_ms=1), topic.name) as producer:
        for number in range(10):
            producer.produce(f"{number}", "key")
        with pytest.raises(BufferError, match="call poll"):
            producer.produce("10", "key")
        assert len(producer) == 10
        wait_until(lambda: producer.poll(1) and len(producer) < 10, 60)
        producer.produce("later", "key")


def test_large_message_fails_alone_with_its_reason(topic: ScalableTopic) -> None:
    reports: list[tuple[AnabranchError | None, DeliveryReport]] = []
    with Producer(topic.config(message_max_bytes=4_000_000), topic.name) as producer:
        with pytest.raises(MessageTooLarge):
            producer.produce(bytes(5_000_000), "key")
        producer.produce(bytes(2_000_000), "key", lambda *report: reports.append(report))
        wait_until(lambda: producer.poll(1) and reports, 60)
        error, delivery = reports[0]
        assert isinstance(error, MessageTooLarge)
        assert delivery.offset is None
        producer.produce("small", "key")
        assert producer.flush(60) == 0
    assert [message.value() for _, message in topic.messages()] == [b"small"]


def test_seal_without_successor_times_out(topic: ScalableTopic, controller: RunningController) -> None:
    """The controller has died between sealing a segment and naming its children."""
    (name,) = topic.kafka_topics().values()
    errors: list[AnabranchError | None] = []
    with Producer(topic.config(message_timeout_ms=2_000), topic.name) as producer:
        controller.segments(topic.name).terminate(segment_of(name).segment)
        for number in range(3):
            producer.produce(f"{number}", "key", lambda error, _: errors.append(error))
        assert producer.flush(60) == 0
        assert [type(error) for error in errors] == [DeliveryTimeout] * 3
        topic.split(0)

        def is_stored() -> bool:
            # On a slow machine two seconds may pass before the layout is here.
            producer.produce("later", "key", lambda error, _: errors.append(error))
            return producer.flush(60) == 0 and errors[-1] is None

        wait_until(is_stored, 120)
    assert {message.value() for _, message in topic.messages()} == {b"later"}


def test_deleted_topic_is_typed_and_may_return(topic: ScalableTopic) -> None:
    errors: list[AnabranchError | None] = []

    def is_refused() -> bool:
        try:
            producer.produce("lost with its topic", "key", lambda error, _: errors.append(error))
        except TopicRemoved:
            return True
        return False

    def is_taken() -> bool:
        try:
            producer.produce("of the second life", "key")
        except TopicRemoved:
            return False
        return True

    with Producer(topic.config(), topic.name) as producer:
        producer.produce("of the first life", "key")
        assert producer.flush(60) == 0
        topic.delete()
        wait_until(is_refused, 60)
        assert producer.flush(60) == 0
        topic.create()
        wait_until(is_taken, 60)
        assert producer.flush(60) == 0
    assert all(error is None or isinstance(error, TopicRemoved) for error in errors)
    assert b"of the second life" in {message.value() for _, message in topic.messages()}


def test_unknown_topic_is_a_typed_error(topic: ScalableTopic) -> None:
    with pytest.raises(TopicNotFound, match="create it"):
        Producer(topic.config(), f"{topic.name}-missing")
