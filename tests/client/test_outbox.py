"""Messages that are sent together: none waits for a call, none is lost, those of a key keep their order."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from anabranch_client import config
from anabranch_client import producer as module
from anabranch_client.errors import AnabranchError, MessageDiscarded, QueueFull
from anabranch_client.lanes import Lane
from anabranch_client.layout import Layout
from anabranch_client.messages import DeliveryReport, PendingMessage
from anabranch_client.producer import Producer
from anabranch_client.sent_batch import SentBatch
from tests.client.test_reports import CONFIG, LAYOUT, TOPIC, AnsweringKafka, FixedWatch
from tests.waiting import wait_until

HALVES = [
    {"segmentId": 1, "hashRange": {"start": 0, "end": 0x7FFF}, "state": "ACTIVE", "parentIds": [0]},
    {"segmentId": 2, "hashRange": {"start": 0x8000, "end": 0xFFFF}, "state": "ACTIVE", "parentIds": [0]},
]
SPLIT = Layout.from_record(TOPIC, {"epoch": 1, "createdAtMs": 5, "segments": {str(s["segmentId"]): s for s in HALVES}})
BURST = {**CONFIG, "linger.ms": 30_000}
"""Within it, all messages but the first wait for others."""


class RecordingKafka(AnsweringKafka):
    """Kafka's producer that keeps what it is given, in calls of one and of several messages."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[bytes]]] = []
        self.refuses = 0
        """Calls of several messages whose last ones are refused."""

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, report: object) -> None:
        self.calls.append((topic, [value]))
        super().produce(topic, value, key, partition, report)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int, report: object) -> int:
        taken = messages
        if self.refuses:
            self.refuses -= 1
            taken = messages[:1]
            for message in messages[1:]:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
        self.calls.append((topic, [message["value"] for message in taken]))
        super().produce_batch(topic, taken, partition, report)
        return len(taken)

    @property
    def values(self) -> list[bytes]:
        """All values in the order in which they came."""
        return [value for _, values in self.calls for value in values]


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> RecordingKafka:
    kafka = RecordingKafka()
    monkeypatch.setattr(module, "kafka_client", lambda *_: kafka)
    monkeypatch.setattr(module, "LayoutWatch", FixedWatch)
    monkeypatch.setattr(config, "LINGER_MS", BURST["linger.ms"])
    return kafka


def produce_numbers(producer: Producer, count: int, reported: list[Any] | None = None) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    for value in values:
        producer.produce(value, b"key", None if reported is None else lambda *report: reported.append(report))
    return values


def test_burst_is_sent_together_and_reported_in_order(kafka: RecordingKafka) -> None:
    reported: list[tuple[AnabranchError | None, DeliveryReport]] = []
    with Producer(BURST, TOPIC) as producer:
        values = produce_numbers(producer, 500, reported)
        assert len(producer) == 500
        producer.flush(60)
    assert kafka.values == values
    assert len(kafka.calls) <= 5
    assert [(error, report.value, report.key, report.segment) for error, report in reported] == [
        (None, value, b"key", 0) for value in values
    ]


def test_burst_is_sent_without_any_further_call(kafka: RecordingKafka) -> None:
    producer = Producer({**CONFIG, "linger.ms": 200}, TOPIC)
    values = produce_numbers(producer, 3)
    assert kafka.values == values[:1]
    wait_until(lambda: kafka.values == values, 60)
    producer.close()


def test_layout_between_keeps_the_order_of_a_key(kafka: RecordingKafka) -> None:
    producer = Producer(BURST, TOPIC)
    values = produce_numbers(producer, 3)
    cast(FixedWatch, producer._watch).layout = SPLIT
    for value in (b"3", b"4", b"5"):
        producer.produce(value, b"key")
    assert producer.flush(60) == 0
    assert kafka.values == [*values, b"3", b"4", b"5"]
    assert len({topic for topic, _ in kafka.calls}) == 2
    # Kafka had the first only when the layout came.
    assert kafka.calls[0] == (LAYOUT.segments[0].kafka_topic, values[:1])
    producer.close()


def test_outboxes_of_a_segment_and_its_child_go_in_that_order(kafka: RecordingKafka) -> None:
    producer = Producer(BURST, TOPIC)
    values = produce_numbers(producer, 3)
    (parent,) = producer._lanes._active
    # As another thread does in `poll`: the messages of the parent are still in its outbox.
    producer._kafka.poll(0)
    producer._settle()
    producer._lanes.follow(SPLIT)
    cast(FixedWatch, producer._watch).layout = SPLIT
    assert len(parent.outbox) == 2
    encoded, child = cast(Any, producer._lanes.find_route(b"key"))
    child.outbox.append((b"3", encoded, None))
    producer._outboxes.touched.add(child)
    assert producer.flush(60) == 0
    assert kafka.values == [*values, b"3"]
    producer.close()


def test_order_of_a_key_is_kept_after_an_interrupted_send(
    kafka: RecordingKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(BURST, TOPIC)
    values = produce_numbers(producer, 3)
    cast(FixedWatch, producer._watch).layout = SPLIT
    producer._kafka.poll(0)
    producer._settle()
    resubmit = producer._lanes.resubmit

    def interrupt(record: PendingMessage) -> None:
        monkeypatch.setattr(producer._lanes, "resubmit", resubmit)
        raise KeyboardInterrupt

    monkeypatch.setattr(producer._lanes, "resubmit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.flush(60)
    encoded, child = cast(Any, producer._lanes.find_route(b"key"))
    child.outbox.append((b"3", encoded, None))
    producer._outboxes.touched.add(child)
    assert producer.flush(60) == 0
    assert kafka.values == [*values, b"3"]
    producer.close()


@pytest.mark.parametrize("end", ["flush", "close"])
def test_messages_that_reports_produce_are_waited_for(kafka: RecordingKafka, end: str) -> None:
    reported: list[AnabranchError | None] = []

    def produce_again(error: AnabranchError | None, _: DeliveryReport) -> None:
        producer.produce(b"again", b"key", lambda error, _: reported.append(error))

    producer = Producer(BURST, TOPIC)
    producer.produce(b"0", b"key", produce_again)
    assert getattr(producer, end)(60) == 0
    assert (kafka.values, reported, len(producer)) == ([b"0", b"again"], [None], 0)
    producer.close()


def test_bound_holds_when_a_split_brings_more_segments(kafka: RecordingKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer({**BURST, "queue.buffering.max.messages": 10}, TOPIC)
    produce_numbers(producer, 4)
    cast(FixedWatch, producer._watch).layout = SPLIT
    # Kafka does not answer.
    monkeypatch.setattr(kafka, "poll", lambda timeout: None)
    producer.poll(0.001)
    with pytest.raises(QueueFull):
        produce_numbers(producer, 100)
    assert len(producer) == 10


def test_one_thread_at_a_time_serves_kafka(kafka: RecordingKafka) -> None:
    producer = Producer(BURST, TOPIC)
    serving: list[int] = []
    entered, leave = threading.Event(), threading.Event()

    def poll(timeout: float) -> None:
        serving.append(threading.get_ident())
        entered.set()
        assert leave.wait(60)

    kafka.poll = poll  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(producer.poll, 0)
        assert entered.wait(60)
        assert producer.poll(0.05) == 0
        assert len(serving) == 1
        leave.set()
        assert first.result() == 0
    producer.close()


def test_refused_rest_of_a_batch_is_sent_again(kafka: RecordingKafka) -> None:
    reported: list[tuple[AnabranchError | None, DeliveryReport]] = []
    kafka.refuses = 1
    with Producer(BURST, TOPIC) as producer:
        values = produce_numbers(producer, 5, reported)
        assert producer.flush(60) == 0
        assert producer._lanes._active[0].in_flight == 0
    assert kafka.values == values
    assert sorted(cast(bytes, report.value) for error, report in reported if error is None) == values


def test_message_behind_a_close_is_refused(kafka: RecordingKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(BURST, TOPIC)
    produce_numbers(producer, 1)
    arm = producer._outboxes.arm

    def arm_and_close(send: Any) -> bool:
        assert arm(send)
        producer.close()
        return True

    monkeypatch.setattr(producer._outboxes, "arm", arm_and_close)
    with pytest.raises(module.ClientClosed):
        producer.produce(b"1", b"key")
    assert (kafka.values, len(producer)) == ([b"0"], 0)


@pytest.mark.parametrize("key", [None, "long" * 50])
def test_messages_of_no_key_and_of_long_ones_arrive(kafka: RecordingKafka, key: str | None) -> None:
    with Producer(BURST, TOPIC) as producer:
        for number in range(4):
            producer.produce(b"%d" % number, key)
        assert producer.flush(60) == 0
    assert kafka.values == [b"0", b"1", b"2", b"3"]
    assert len(kafka.calls) == (2 if key is None else 4)


def test_idle_producer_sends_at_once(kafka: RecordingKafka) -> None:
    with Producer({**CONFIG, "linger.ms": 0}, TOPIC) as producer:
        values = produce_numbers(producer, 4)
        assert kafka.calls == [(LAYOUT.segments[0].kafka_topic, [value]) for value in values]


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from([b"1", b"2"])), min_size=1, max_size=8), st.data()
)
def test_every_message_of_a_batch_ends_once(pairs: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    """Messages end in any order in which librdkafka can report: stored ones in theirs, the others at any time."""
    outcomes: list[Any] = []
    lane = Lane(LAYOUT.segments[0], LAYOUT)
    batch = SentBatch(lane, [(value, key, None) for key, value in pairs], 7, 0.0, outcomes)
    failing = data.draw(st.sets(st.sampled_from(range(len(pairs)))))
    stored = [index for index in range(len(pairs)) if index not in failing]
    order = data.draw(st.permutations([*failing, *(None for _ in stored)]))
    queue, reports = iter(stored), []
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    for place in order:
        index = next(queue) if place is None else place
        key, value = pairs[index]
        batch.end(None if place is None else error, Message(key=key, value=value, offset=100 + index))
        if data.draw(st.booleans()):
            reports += taken(outcomes)
    reports += taken(outcomes)
    assert sorted((key, value) for key, value, _ in reports) == sorted(pairs)
    ended = sorted(offset for _, _, offset in reports if offset is not None)
    assert ended == [100 + index for index in stored]
    failed = sorted((key, value) for key, value, offset in reports if offset is None)
    if len(set(pairs)) == len(pairs):
        assert failed == sorted(pairs[index] for index in failing) or stored_before_failure(order)


def stored_before_failure(order: list[int | None]) -> bool:
    """Return whether a message was reported as stored before an earlier one failed: then both may change places."""
    seen = 0
    for place in order:
        if place is None:
            seen += 1
        elif seen > place - sum(1 for other in order[: order.index(place)] if other is not None and other < place):
            return True
    return False


def taken(outcomes: list[Any]) -> list[tuple[bytes, bytes, int | None]]:
    """Take what has ended, as the producer does."""
    reports = []
    for outcome in outcomes:
        if isinstance(outcome, SentBatch):
            outcome.is_listed = False
            due = outcome.stored()
            outcome.taken += len(due)
            reports += [(key, value, offset) for _, _, key, value, offset, _, _ in due]
        else:
            reports.append((outcome.key, outcome.value, outcome.offset))
    outcomes.clear()
    return reports


def test_discarded_batch_reports_each_message(kafka: RecordingKafka) -> None:
    reported: list[tuple[AnabranchError | None, DeliveryReport]] = []
    producer = Producer(BURST, TOPIC)
    kafka.error = KafkaError(KafkaError._PURGE_QUEUE)
    produce_numbers(producer, 4, reported)
    producer.close(0)
    assert [type(error) for error, _ in reported] == [MessageDiscarded] * 4
