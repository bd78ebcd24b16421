"""Reports of a producer whose Kafka does not answer: callbacks may raise and call the producer; bounds hold."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from anabranch_client import producer as module
from anabranch_client.errors import (
    AnabranchError,
    ClientClosed,
    ClientSettingsError,
    DeliveryError,
    MessageDiscarded,
    QueueFull,
    TopicRemoved,
)
from anabranch_client.lanes import Lanes, LaneState
from anabranch_client.layout import Layout
from anabranch_client.messages import DeliveryReport
from anabranch_client.outbox import Outboxes
from anabranch_client.producer import Producer
from anabranch_client.reports import Reports
from anabranch_client.sent_batch import SentBatch
from tests.controller.conftest import NOWHERE

TOPIC = "topic://acme/shop/orders"
CONFIG = {
    "bootstrap.servers": NOWHERE,
    "anabranch.controller.url": f"http://{NOWHERE}",
    "message.timeout.ms": 200,
    "linger.ms": 1,
    "log_level": 0,
}
ACTIVE = {"segmentId": 0, "hashRange": {"start": 0, "end": 0xFFFF}, "state": "ACTIVE"}
LAYOUT = Layout.from_record(TOPIC, {"epoch": 0, "createdAtMs": 5, "segments": {"0": ACTIVE}})


class FixedWatch:
    """A watch session that knows one layout."""

    def __init__(self, *_: object) -> None:
        self.topic = TOPIC
        self.layout: Layout | None = LAYOUT
        self.error: AnabranchError | None = None

    def first(self, timeout: float) -> Layout:
        return LAYOUT

    def close(self) -> None:
        pass


class AnsweringKafka:
    """Kafka's producer; it answers all messages at once, and numbers failed ones as librdkafka does."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.error = error
        self.sent: deque[Callable[[KafkaError | None, Message], None]] = deque()
        self.waited = threading.Event()
        """Set when a call waits."""

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, report: object) -> None:
        assert callable(report)
        self.sent.append(report)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int, report: object) -> int:
        assert callable(report)
        self.sent += [report] * len(messages)
        return len(messages)

    def poll(self, timeout: float) -> None:
        for offset in range(len(self.sent)):
            self.sent.popleft()(self.error, Message(offset=offset))
        if timeout:
            self.waited.set()

    def flush(self, timeout: float) -> None:
        self.poll(0)

    def purge(self) -> None:
        pass


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> AnsweringKafka:
    kafka = AnsweringKafka()
    monkeypatch.setattr(module, "kafka_client", lambda *_: kafka)
    return kafka


@pytest.fixture(autouse=True)
def without_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LayoutWatch", FixedWatch)


def test_reports_that_raise_do_not_stop_others() -> None:
    reported: list[bytes | None] = []

    def fail(_: AnabranchError | None, delivery: DeliveryReport) -> None:
        reported.append(delivery.value)
        raise RuntimeError("a fault of the application")

    producer = Producer(CONFIG, TOPIC)
    for number in range(5):
        producer.produce(b"%d" % number, b"key", fail)
    with pytest.raises(RuntimeError, match="a fault of the application"):
        producer.poll(60)
    with pytest.raises(RuntimeError, match="a fault of the application"):
        producer.close(60)
    assert reported == [b"0", b"1", b"2", b"3", b"4"]
    assert len(producer) == 0
    with pytest.raises(ClientClosed):
        producer.produce(b"later")


@pytest.mark.parametrize("call", [Producer.poll, Producer.flush, Producer.close])
def test_report_may_call_the_producer(call: object) -> None:
    reported: list[bytes | None] = []

    def report(_: AnabranchError | None, delivery: DeliveryReport) -> None:
        reported.append(delivery.value)
        if delivery.value == b"0":
            producer.produce(b"again", b"key", report)
        assert callable(call)
        call(producer, 60)

    producer = Producer(CONFIG, TOPIC)
    for number in range(4):
        producer.produce(b"%d" % number, b"key", report)
    assert producer.flush(60) == 0
    assert producer.close(60) == 0
    assert sorted(reported) == [b"0", b"1", b"2", b"3", b"again"]


def test_close_in_a_seal_discards_what_waits() -> None:
    errors: list[AnabranchError | None] = []
    producer = Producer(CONFIG, TOPIC)
    (lane,) = producer._lanes._active
    producer._lanes._block(lane, LaneState.SEALED)
    for number in range(3):
        producer.produce(b"%d" % number, b"key", lambda error, _: errors.append(error))
    assert producer.close(0.1) == 3
    assert [type(error) for error in errors] == [MessageDiscarded] * 3
    assert producer.close() == 0


@pytest.mark.parametrize("bound", [{"queue.buffering.max.messages": 3}, {"queue.buffering.max.kbytes": 6}])
def test_memory_is_bounded_until_reports_are_called(bound: dict[str, int]) -> None:
    producer = Producer({**CONFIG, **bound}, TOPIC)
    for _ in range(3):
        producer.produce(bytes(1_400), b"key")
    with pytest.raises(QueueFull, match="call poll"):
        producer.produce(bytes(1_400), b"key")
    assert producer.flush(60) == 0
    producer.produce(bytes(1_400), b"key")
    producer.close(60)


def test_error_of_removed_topic_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(CONFIG, TOPIC)
    monkeypatch.setattr(producer._watch, "layout", None)
    monkeypatch.setattr(producer._watch, "error", TopicRemoved(TOPIC))
    depths = set()
    for _ in range(3):
        with pytest.raises(TopicRemoved) as raised:
            producer.produce(b"late")
        depths.add(len(raised.traceback))
    assert len(depths) == 1
    producer.close(1)


@pytest.mark.parametrize(
    "wrong", [{"acks": "1"}, {"delivery.report.only.error": True}, {"enable.gapless.guarantee": True}, {"no.such": 1}]
)
def test_setting_that_harms_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ClientSettingsError):
        Producer({**CONFIG, **wrong}, TOPIC)


def test_failed_message_reports_no_offset(kafka: AnsweringKafka) -> None:
    reports: list[DeliveryReport] = []
    with Producer({**CONFIG, "linger.ms": 0}, TOPIC) as producer:
        for error in (KafkaError(KafkaError._MSG_TIMED_OUT), None):
            kafka.error = error
            for number in range(2):
                producer.produce(b"%d" % number, b"key", lambda _, delivery: reports.append(delivery))
            assert producer.poll(60) == 2
    assert [delivery.offset for delivery in reports] == [None, None, 0, 1]
    assert [delivery.position for delivery in reports] == [None, None, (5, 0, 0), (5, 0, 1)]
    assert repr(reports[3]) == "DeliveryReport(topic://acme/shop/orders, segment=0, offset=1, key=b'key')"


def test_large_messages_are_bounded_until_each_report(kafka: AnsweringKafka) -> None:
    waiting: list[int] = []
    with Producer(CONFIG, TOPIC) as producer:
        for _ in range(4):
            producer.produce(bytes(600_000 - 500 - 3), b"key", lambda *_: waiting.append(producer._reports.bytes))
        assert producer.poll(60) == 4
    assert waiting == [1_800_000, 1_200_000, 600_000, 0]


def test_interrupted_produce_still_reports(kafka: AnsweringKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def produce(topic: str, value: bytes, *details: object) -> None:
        if value == b"refused":
            raise TypeError("a wrong argument")
        kafka.sent.append(cast(Any, details[-1]))
        raise KeyboardInterrupt

    reported: list[bytes | None] = []
    producer = Producer(CONFIG, TOPIC)
    monkeypatch.setattr(kafka, "produce", produce)
    for value, error in ((b"accepted", KeyboardInterrupt), (b"refused", TypeError)):
        with pytest.raises(error):
            producer.produce(value, b"key", lambda _, delivery: reported.append(delivery.value))
    assert (len(producer), producer.flush(60), len(producer)) == (1, 0, 0)
    assert reported == [b"accepted"]
    assert producer._lanes._active[0].in_flight == 0
    producer.close()


def test_interrupt_in_kafkas_report_comes_after_it(kafka: AnsweringKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(timeout: float) -> None:
        # A call without a Python frame of its own, as librdkafka's are.
        offset = partial(signal.raise_signal, signal.SIGINT)
        while kafka.sent:
            kafka.sent.popleft()(None, cast(Message, SimpleNamespace(offset=offset)))

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        producer = Producer(CONFIG, TOPIC)
        reported: list[bytes | None] = []
        for value in (b"0", b"1"):
            producer.produce(value, b"key", lambda _, delivery: reported.append(delivery.value))
        monkeypatch.setattr(kafka, "flush", flush)
        with pytest.raises(KeyboardInterrupt):
            producer.flush(60)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert producer.poll() == 2
        assert reported == [b"0", b"1"]
        producer.close()
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.process
def test_interrupts_at_any_time_lose_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    # librdkafka's own broker, in this process; a signal whenever this process has used some milliseconds.
    monkeypatch.setitem(module.PRODUCER_OPTIONS, "allow.auto.create.topics", True)
    batching = (Outboxes.arm, Outboxes.send, Outboxes._empty, Outboxes._send_batch, SentBatch.stored)
    calls = (Producer.produce, Producer._send, Producer._settle, Lanes.submit, Reports._call_chunk, *batching)
    codes = {call.__code__ for call in calls}
    accepted: list[bytes] = []
    doubtful: set[bytes] = set()
    reported: list[bytes | None] = []

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code in codes:
            raise KeyboardInterrupt

    producer = Producer({**CONFIG, "test.mock.num.brokers": 1, "message.timeout.ms": 60_000}, TOPIC)
    signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        while len(doubtful) < 5:
            value = b"%d" % (len(accepted) + len(doubtful))
            try:
                producer.produce(
                    value, b"key-%d" % (len(value) % 7), lambda _, delivery: reported.append(delivery.value)
                )
                accepted.append(value)
            except KeyboardInterrupt:
                doubtful.add(value)
            except QueueFull:
                pass
            if len(accepted) % 5 == 0:
                with suppress(KeyboardInterrupt):
                    producer.poll(0.001)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        # Not its default: a late signal would end the process.
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    assert (producer.flush(), producer.close()) == (0, 0)
    assert len(reported) == len(set(reported))
    assert set(accepted) <= set(reported) <= set(accepted) | doubtful
    assert (producer._reports.count, producer._reports.bytes) == (0, 0)


def test_ended_kafka_client_says_what_to_do(kafka: AnsweringKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    monkeypatch.setattr(kafka, "produce", refuse)
    with Producer(CONFIG, TOPIC) as producer, pytest.raises(DeliveryError, match="create another one"):
        producer.produce(b"0", b"key")


def test_flush_waits_while_another_thread_reports(kafka: AnsweringKafka) -> None:
    called = threading.Event()

    def report(*_: object) -> None:
        called.set()
        assert kafka.waited.wait(60)

    with Producer(CONFIG, TOPIC) as producer, ThreadPoolExecutor(1) as threads:
        producer.produce(b"0", b"key", report)
        polled = threads.submit(producer.poll)
        assert called.wait(60)
        assert producer.flush() == 0
        assert polled.result() == 1
