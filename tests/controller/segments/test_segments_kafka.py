"""Segment topics on a real broker: sealed segments and acknowledged messages stay, operations can be repeated.

Longer than other files: all operations on the same broker.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from anabranch.controller.segments.base import (
    NameTooLong,
    SegmentNotFound,
    SegmentStoreError,
    SegmentTopicStats,
    SubscriptionInUse,
    SubscriptionNotFound,
)
from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.controller.segments.kafka_names import KafkaPartition, group_id, kafka_topic
from anabranch.controller.segments.kafka_probe import PartitionProbe
from decisions.topic.layout import SegmentLayout
from schemas.kafka.connection import KafkaConnection
from schemas.metadata import HashRange
from tests.controller.conftest import NOWHERE
from tests.controller.segments.killed_at import SUBSCRIPTIONS, WHOLE
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

ROOT = Path(__file__).resolve().parents[3]
LOWER, UPPER = HashRange(start=0, end=0x7FFF), HashRange(start=0x8000, end=0xFFFF)
REFUSALS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
"""Of a sealed segment: at once, after a wait for the log's lock, and after that wait of several messages together."""


@pytest.fixture(scope="session")
def segments(kafka_segments: KafkaSegments) -> KafkaSegments:
    return kafka_segments


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return f"topic://acme/segments/{request.node.name}"


def segment_of(topic: str) -> str:
    return f"segment://{topic.removeprefix('topic://')}/0000-ffff-0"


def write(kafka: str, segment: str, values: list[bytes], times: Sequence[int] = (), life: int | None = None) -> None:
    """Writes, at the given times (ms) or now, and waits for every acknowledgement."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    failures: list[KafkaError] = []
    for value, time_ms in zip_longest(values, times, fillvalue=0):
        producer.produce(
            kafka_topic(segment, life),
            value,
            timestamp=time_ms,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(10) == 0
    assert failures == []


def read(kafka: str, segment: str, end: int) -> list[bytes]:
    """The values at the positions 0 to `end` - 1."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(kafka_topic(segment), 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + 10
    while len(found) < end and time.monotonic() < deadline:
        found += consumer.consume(end - len(found), 0.5)
    consumer.close()
    assert [message.offset() for message in found] == list(range(end))
    return [value for message in found if (value := message.value()) is not None]


def acknowledge(kafka: str, segment: str, subscription: str, position: int, life: int | None = None) -> None:
    """What a client of the subscription does."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group_id(segment, subscription, life)})
    consumer.commit(offsets=[TopicPartition(kafka_topic(segment, life), 0, position)], asynchronous=False)
    consumer.close()


class Writer(threading.Thread):
    """Writes without a pause to the first of some segments, and to the next one from the first refusal on."""

    def __init__(self, kafka: str, *segments: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 0, "acks": "all"}
        )
        self._segments = list(segments)
        self.stopping = threading.Event()
        self.acknowledged: dict[str, dict[int, bytes]] = {segment: {} for segment in segments}
        self.refused: list[KafkaError] = []
        self.at = segments[0]
        """The segment that is written to."""

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            self._write(b"%d" % number)
            number += 1
            self._producer.poll(0.002)
        self._producer.flush(10)

    def _write(self, value: bytes) -> None:
        segment = self.at

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged[segment][message.offset() or 0] = value
                return
            self.refused.append(error)
            following = self._segments.index(segment) + 1
            if following < len(self._segments):
                self.at = self._segments[max(following, self._segments.index(self.at))]
                self._write(value)

        self._producer.produce(kafka_topic(segment), value, on_delivery=delivered)


@pytest.fixture
def writers(kafka: str, segments: KafkaSegments, topic: str) -> Iterator[list[Writer]]:
    """Three producers on a segment with a child, each with messages on their way."""
    parent = segments.create(topic, 0, WHOLE)
    child = segments.create(topic, 1, LOWER)
    found = [Writer(kafka, parent, child) for _ in range(3)]
    for writer in found:
        writer.start()
    wait_until(lambda: all(len(writer.acknowledged[parent]) > 50 for writer in found))
    yield found
    for writer in found:
        writer.stopping.set()
        writer.join()


def test_recreated_segment_keeps_messages_and_end(kafka: str, segments: KafkaSegments, topic: str) -> None:
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    write(kafka, segment, [b"a", b"b", b"c"])
    acknowledge(kafka, segment, "billing", 2)
    assert segments.create(topic, 0, WHOLE, ["billing", "audit"]) == segment
    assert segments.stats(segment) == SegmentTopicStats(False, 0, 3, {"audit": 3, "billing": 1})
    assert segments.terminate(segment) == 3
    segments.create(topic, 0, WHOLE, ["billing", "late"])
    assert segments.stats(segment) == SegmentTopicStats(True, 0, 3, {"audit": 3, "billing": 1, "late": 3})


def test_acknowledged_messages_below_termination_end(
    kafka: str, segments: KafkaSegments, topic: str, writers: list[Writer]
) -> None:
    parent = segment_of(topic)
    child = parent.replace("0000-ffff-0", "0000-7fff-1")
    end = segments.terminate(parent)
    wait_until(lambda: all(len(writer.acknowledged[child]) > 50 for writer in writers))
    for writer in writers:
        writer.stopping.set()
        writer.join()
    kept = read(kafka, parent, end)
    assert segments.stats(parent).end == end
    acknowledged = {at: value for writer in writers for at, value in writer.acknowledged[parent].items()}
    assert sorted(acknowledged) == list(range(end))
    assert [acknowledged[at] for at in range(end)] == kept
    assert all(writer.refused for writer in writers)
    assert {error.code() for writer in writers for error in writer.refused} <= REFUSALS
    assert not any(error.fatal() for writer in writers for error in writer.refused)
    after = read(kafka, child, segments.stats(child).end)
    written = sorted(value for writer in writers for part in writer.acknowledged.values() for value in part.values())
    assert written == sorted(kept + after)
    counts = [len(writer.acknowledged[parent]) + len(writer.acknowledged[child]) for writer in writers]
    assert sorted(kept + after) == sorted(b"%d" % number for count in counts for number in range(count))


@pytest.mark.parametrize(("together", "code"), [(1, KafkaError.INVALID_TIMESTAMP), (3, KafkaError.INVALID_RECORD)])
def test_late_write_refused_by_timestamp_not_fatal(
    kafka: str, segments: KafkaSegments, topic: str, together: int, code: int
) -> None:
    """It had passed the check of sizes."""
    segment = segments.create(topic, 0, WHOLE)
    window = dict.fromkeys(("message.timestamp.after.max.ms", "message.timestamp.before.max.ms"), "0")
    changes = [ConfigEntry(*one, incremental_operation=AlterConfigOpType.SET) for one in window.items()]
    asked = ConfigResource(ResourceType.TOPIC, kafka_topic(segment), incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": kafka})
    (changed,) = admin.incremental_alter_configs([asked]).values()
    changed.result(10)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 1000})
    told: list[tuple[int, bool] | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        told.append(None if error is None else (error.code(), error.fatal()))

    def are_refused() -> bool:
        told.clear()
        for _ in range(together):
            producer.produce(kafka_topic(segment), b"x", timestamp=1, on_delivery=delivered)
        assert producer.flush(10) == 0
        return None not in told

    wait_until(are_refused)
    assert told == [(code, False)] * together


def test_repeated_termination_gives_the_same_end(segments: KafkaSegments, topic: str, writers: list[Writer]) -> None:
    parent = segment_of(topic)
    ends: list[int] = []
    callers = [threading.Thread(target=lambda: ends.append(segments.terminate(parent))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert ends == [segments.terminate(parent)] * 3
    assert segments.is_terminated(parent)


def test_lagging_leader_is_awaited(
    kafka: str, segments: KafkaSegments, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = KafkaSegments(KafkaConnection(kafka), timeout_seconds=1)
    segment = segments.create(topic, 0, WHOLE)
    with monkeypatch.context() as change:
        change.setattr(hurried._kafka, "change_settings", lambda topic, settings: None)
        with pytest.raises(SegmentStoreError, match=f"cannot terminate {segment}"):
            hurried.terminate(segment)
    assert segments.terminate(segment) == 0


def test_a_probe_leaves_nothing_in_an_open_segment(segments: KafkaSegments, topic: str, kafka: str) -> None:
    segment = segments.create(topic, 0, WHOLE)
    partition = KafkaPartition(kafka_topic(segment), 0)
    assert [PartitionProbe(segments._kafka, partition).is_refused() for _ in range(3)] == [False] * 3
    assert segments.stats(segment) == SegmentTopicStats(False, 0, 0, {})
    write(kafka, segment, [b"x" * 500_000])


def test_a_backlog_counts_what_was_not_acknowledged(kafka: str, segments: KafkaSegments, topic: str) -> None:
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    write(kafka, segment, [b"a", b"b", b"c"])
    segments.create_subscription(segment, "late", "latest")
    segments.create_subscription(segment, "whole", "earliest")
    write(kafka, segment, [b"d"])
    assert [segments.backlog(segment, name) for name in ("billing", "late", "whole")] == [4, 1, 4]
    acknowledge(kafka, segment, "billing", 4)
    segments.create_subscription(segment, "billing", "earliest")
    assert segments.backlog(segment, "billing") == 0
    segments.terminate(segment)
    assert segments.backlog(segment, "late") == 1


def test_subscription_deleted_on_own_segment_only(segments: KafkaSegments, topic: str) -> None:
    one = segments.create(topic, 1, LOWER, ["audit", "billing", "a/b #é"])
    other = segments.create(topic, 10, LOWER, ["billing"])
    for _ in range(2):
        segments.delete_subscription(one, "billing")
    assert segments.subscriptions(one) == ["a/b #é", "audit"]
    assert segments.subscriptions(other) == ["billing"]
    with pytest.raises(SubscriptionNotFound, match=r"billing on segment://.*create it first"):
        segments.backlog(one, "billing")


def test_used_subscription_deleted_with_segment_only(kafka: str, segments: KafkaSegments, topic: str) -> None:
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    write(kafka, segment, [b"a"])
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": group_id(segment, "billing"), "enable.auto.commit": False}
    )
    consumer.subscribe([kafka_topic(segment)])
    message = wait_until(lambda: consumer.poll(0.1))
    assert message is not None
    consumer.commit(message=message, asynchronous=False)
    with pytest.raises(SubscriptionInUse, match="close them first"):
        segments.delete_subscription(segment, "billing")
    assert segments.backlog(segment, "billing") == 0
    segments.delete(segment)
    segments.create(topic, 0, WHOLE)
    assert segments.subscriptions(segment) == []
    consumer.close()
    assert segments.subscriptions(segment) == []


WITH_TRANSACTIONS = replace(SegmentLayout.create(1, 0, {"transactions": "true"}), created_at_ms=None)


@pytest.mark.parametrize("layout", [SegmentLayout(0, 1, {}), WITH_TRANSACTIONS], ids=["without", "with"])
def test_open_transaction_keeps_segment_open(
    kafka: str, segments: KafkaSegments, topic: str, layout: SegmentLayout
) -> None:
    segments = segments.of_layout(layout)
    hurried = KafkaSegments(KafkaConnection(kafka), timeout_seconds=2).of_layout(layout)
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(kafka_topic(segment), b"a")
    producer.flush()
    for _ in range(2):
        with pytest.raises(
            SegmentStoreError, match=f"cannot terminate {re.escape(segment)} .* open transactions .* end them"
        ):
            hurried.terminate(segment)
    assert not segments.is_terminated(segment)
    producer.commit_transaction()
    end = segments.terminate(segment)
    assert segments.is_terminated(segment)
    assert end == 2
    assert read(kafka, segment, 1) == [b"a"]


def test_sealed_segment_takes_only_ends_of_transactions(kafka: str, segments: KafkaSegments, topic: str) -> None:
    """A refused message makes its segment part of the transaction, which must end there, sealed or not."""
    segments = segments.of_layout(WITH_TRANSACTIONS)
    sealed, active = segments.create(topic, 0, LOWER), segments.create(topic, 1, UPPER)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    assert segments.terminate(sealed) == 0
    told: list[KafkaError | None] = []
    values = [b"", b"x", bytes(10), bytes(11), bytes(100), bytes(10_000)]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        other = Producer({"bootstrap.servers": kafka, "compression.type": codec, "linger.ms": 0, "log_level": 0})
        for value in values:
            other.produce(kafka_topic(sealed), value, on_delivery=lambda error, _: told.append(error))
            other.flush()
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(kafka_topic(sealed), b"late", on_delivery=lambda error, _: told.append(error))
        producer.flush()
        producer.abort_transaction(60)
    assert [error and error.code() for error in told] == [KafkaError.MSG_SIZE_TOO_LARGE] * (5 * len(values) + 2)
    producer.begin_transaction()
    producer.produce(kafka_topic(active), b"a")
    producer.commit_transaction(60)
    assert segments.is_terminated(sealed)
    assert read(kafka, active, 1) == [b"a"]


def test_a_deleted_segment_comes_back_empty(kafka: str, segments: KafkaSegments, topic: str) -> None:
    segment = segments.create(topic, 0, WHOLE, ["billing"])
    write(kafka, segment, [b"a"])
    acknowledge(kafka, segment, "billing", 1)
    segments.terminate(segment)
    for _ in range(2):
        segments.delete(segment)
    with pytest.raises(SegmentNotFound):
        segments.subscriptions(segment)
    segments.create(topic, 0, WHOLE, ["other"])
    assert segments.stats(segment) == SegmentTopicStats(False, 0, 0, {"other": 0})
    write(kafka, segment, [b"b"])
    assert segments.backlog(segment, "other") == 1


def test_missing_segment_reported_not_created(segments: KafkaSegments, topic: str) -> None:
    segment = segment_of(topic)
    asked: list[Callable[[], object]] = [
        lambda: segments.create_subscription(segment, "s"),
        lambda: segments.seek(segment, "s", 0),
        lambda: segments.subscriptions(segment),
        lambda: segments.terminate(segment),
        lambda: segments.is_terminated(segment),
        lambda: segments.backlog(segment, "s"),
        lambda: segments.stats(segment),
    ]
    for ask in asked:
        with pytest.raises(SegmentNotFound, match=r"in Kafka at 127\.0\.0\.1:.*create it first"):
            ask()
    segments.delete(segment)
    segments.delete_subscription(segment, "s")
    segments.check_unused(segment, "s")


def test_unreachable_broker_named_in_time() -> None:
    segments = KafkaSegments(KafkaConnection(NOWHERE), timeout_seconds=0.3)
    segment = "segment://acme/shop/orders/0000-ffff-0"
    asked: list[Callable[[], object]] = [
        lambda: segments.create("topic://acme/shop/orders", 0, WHOLE, ["s"]),
        lambda: segments.create_subscription(segment, "s"),
        lambda: segments.delete_subscription(segment, "s"),
        lambda: segments.check_unused(segment, "s"),
        lambda: segments.seek(segment, "s", "latest"),
        lambda: segments.subscriptions(segment),
        lambda: segments.terminate(segment),
        lambda: segments.is_terminated(segment),
        lambda: segments.delete(segment),
        lambda: segments.backlog(segment, "s"),
        lambda: segments.stats(segment),
    ]
    for ask in asked:
        began = time.monotonic()
        with pytest.raises(
            SegmentStoreError, match=f"cannot .*{segment}.*Kafka at {NOWHERE} gave no answer within 0.3"
        ):
            ask()
        assert time.monotonic() - began < 5


def test_lab_broker_is_fit_for_segments(segments: KafkaSegments) -> None:
    assert segments.complaints() == []


def test_oversized_name_refused_before_any_change(segments: KafkaSegments) -> None:
    topic = f"topic://acme/segments/{'x' * 220}"
    with pytest.raises(NameTooLong):
        segments.check_topic(topic)


@pytest.mark.parametrize(("operation", "changes"), [("create", 3), ("terminate", 1), ("delete", 3)])
def test_killed_and_repeated_steps_are_idempotent(
    operation: str, changes: int, kafka: str, segments: KafkaSegments
) -> None:
    for change in range(1, changes + 2):
        topic = f"topic://acme/segments/killed-{operation}-{change}"
        segment = segment_of(topic)
        if operation != "create":
            segments.create(topic, 0, WHOLE, SUBSCRIPTIONS)
            write(kafka, segment, [b"a", b"b"])
        command = [sys.executable, "-m", "tests.controller.segments.killed_at", kafka, topic, operation, str(change)]
        died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert died.returncode == (-signal.SIGKILL if change <= changes else 0), died.stderr
        if operation == "create":
            segments.create(topic, 0, WHOLE, SUBSCRIPTIONS)
            assert segments.stats(segment) == SegmentTopicStats(False, 0, 0, {"audit": 0, "billing": 0})
            write(kafka, segment, [b"a"])
        elif operation == "terminate":
            assert segments.terminate(segment) == 2
            assert segments.stats(segment) == SegmentTopicStats(True, 0, 2, {"audit": 2, "billing": 2})
        else:
            segments.delete(segment)
            segments.create(topic, 0, WHOLE)
            assert segments.stats(segment) == SegmentTopicStats(False, 0, 0, {})


def test_positions_read_by_crash_free_client():
    """librdkafka issue 5040: it was a killed controller whenever a broker had just taken a group over."""
    root = Path(__file__).parents[3]
    found = [
        file.relative_to(root)
        for folder in ("schemas", "lake", "runtime", "streaming", "anabranch", "benchmarks")
        for file in (root / folder).rglob("*.py")
        if "list_consumer_group_offsets" in (text := file.read_text())
        and any(
            isinstance(node, ast.Attribute) and node.attr == "list_consumer_group_offsets"
            for node in ast.walk(ast.parse(text))
        )
    ]
    assert not found
