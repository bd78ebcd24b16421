"""Producer of a scalable topic, in the style of `confluent_kafka.Producer`.

Stage: between the application and librdkafka. `watch` brings layouts, `lanes` decides which segment takes a message and
when, one idempotent Kafka producer sends. All work is done in the calls of the application: `poll` or `flush` must be
called regularly, as with Kafka's own producer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from anabranch_client.config import ProducerSettings
from anabranch_client.controller import Controller
from anabranch_client.errors import (
    AnabranchError,
    ClientClosed,
    DeliveryError,
    DeliveryTimeout,
    MessageDiscarded,
    QueueFull,
    TopicRemoved,
    delivery_error,
)
from anabranch_client.lanes import Lane, Lanes, LaneState
from anabranch_client.layout import LayoutSegment, key_hash
from anabranch_client.messages import DeliveryReport, Headers, OnDelivery, PendingMessage, size_of_headers
from anabranch_client.names import PARTITION
from anabranch_client.probe import GONE, SealProbe
from anabranch_client.watch import LayoutWatch

OVERHEAD_BYTES = 500
"""Counted for each message beside its key, value and headers."""
MAX_CACHED_HASHES = 65_536
TICK_SECONDS = 0.02
"""Longest wait in one call of librdkafka while messages wait for a layout or a probe."""
PROBE_SECONDS = 0.5
"""Time between two probes of a segment that is known to be sealed by neither layout nor Kafka."""

_REFUSALS = GONE | {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
"""Kafka's answers of a segment that is sealed, was sealed during the write, or was deleted since."""
_FORCED: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_147_483_647,
}


class Producer:
    """Writes to one scalable topic; thread-safe.

    Delivery is at least once: a message whose acknowledgement was lost in the moment of a seal is written twice.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, timeout: float = 30.0) -> None:
        """Wait up to `timeout` seconds for the first layout. Raises `AnabranchError`."""
        self._settings = ProducerSettings.of(config)
        self._watch = LayoutWatch(Controller(self._settings.controller), topic)
        self.topic = self._watch.topic
        try:
            layout = self._watch.first(timeout)
            self._kafka = confluent_kafka.Producer({**self._settings.kafka, **_FORCED})
        except BaseException:
            self._watch.close()
            raise
        self._lock = threading.RLock()
        self._lanes = Lanes(layout, self._send, self._end_message)
        self._numbers = self._count = self._bytes = 0
        self._ended: deque[tuple[PendingMessage, AnabranchError]] = deque()
        """Failed messages whose reports have not been delivered."""
        self._hashes: dict[bytes, int] = {}
        self._probe: SealProbe | None = None
        self._probed: dict[str, float] = {}
        """Time of the latest unanswered probe, by Kafka topic."""
        self._is_closed = False

    def produce(
        self,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers = None,
    ) -> None:
        """Begin to send a message; messages of a key are stored in the order of these calls.

        `timestamp` in milliseconds, 0: now. Raises `QueueFull` (a `BufferError`), `MessageTooLarge`, `TopicRemoved`.
        """
        key = key.encode() if isinstance(key, str) else key
        value = value.encode() if isinstance(value, str) else value
        size = OVERHEAD_BYTES + len(key or b"") + len(value or b"") + size_of_headers(headers)
        with self._lock:
            if self._is_closed:
                raise ClientClosed(f"the producer of {self.topic} is closed: create another one")
            self._follow_layout()
            if self._watch.layout is None:
                raise self._watch.error or TopicRemoved(self.topic)
            if self._count >= self._settings.max_messages or (
                self._count and self._bytes + size > self._settings.max_bytes
            ):
                raise QueueFull(
                    f"{self._count} messages ({self._bytes} bytes) wait for acknowledgements of {self.topic}: call poll"
                )
            record = PendingMessage(
                key, value, headers, timestamp, on_delivery, None if key is None else self._hash_of(key)
            )
            record.size, record.number = size, self._numbers
            record.deadline = time.monotonic() + self._settings.timeout_seconds
            self._lanes.submit(record)
            self._numbers += 1
            self._count += 1
            self._bytes += size

    def poll(self, timeout: float = 0) -> int:
        """Serve delivery reports; return their number.

        Waits for the first one for `timeout` seconds, -1: forever.
        """
        end = float("inf") if timeout < 0 else time.monotonic() + timeout
        served = self._serve(0)
        while not served:
            left = end - time.monotonic()
            if left <= 0:
                break
            served = self._serve(min(left, TICK_SECONDS if self._lanes.blocked else 1.0))
        return served

    def flush(self, timeout: float = -1) -> int:
        """Wait until all messages are delivered or failed; return the number of those that are neither."""
        end = float("inf") if timeout < 0 else time.monotonic() + timeout
        while self._count or self._ended:
            left = end - time.monotonic()
            if left <= 0:
                break
            self._serve(0, flush_seconds=min(left, TICK_SECONDS))
        return self._count

    def close(self, timeout: float = 30.0) -> int:
        """Flush, discard the rest with `MessageDiscarded`, and end; idempotent. Return the number discarded."""
        if self._is_closed:
            return 0
        self.flush(timeout)
        with self._lock:
            if self._is_closed:
                return 0
            self._is_closed = True
            discarded = self._count
            error = MessageDiscarded("the producer was closed before Kafka acknowledged the message: produce it again")
            self._lanes.give_up(lambda record: True, lambda lane: error)
        self._kafka.purge()
        self._serve(0, flush_seconds=1.0)
        self._watch.close()
        return discarded

    @property
    def resent(self) -> int:
        """Number of messages so far that were sent again, to the successors of a sealed segment."""
        return self._lanes.resent

    def __len__(self) -> int:
        """Number of messages that are neither delivered nor failed."""
        return self._count

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, timeout: float, flush_seconds: float | None = None) -> int:
        """Do everything that is due; return the number of reports."""
        with self._lock:
            self._follow_layout()
            if self._lanes.blocked:
                self._examine_lanes()
        if self._probe is not None:
            self._probe.poll()
        if flush_seconds is None:
            return self._kafka.poll(timeout) + self._report_ended()
        self._kafka.flush(flush_seconds)
        if self._lanes.blocked:
            # Perhaps nothing is in flight: wait for a layout or a probe.
            self._kafka.poll(TICK_SECONDS / 4)
        return self._report_ended()

    def _report_ended(self) -> int:
        served = 0
        while True:
            try:
                record, error = self._ended.popleft()
            except IndexError:
                return served
            served += 1
            if record.on_delivery is not None:
                record.on_delivery(error, self._delivery_report(record, None))

    def _follow_layout(self) -> None:
        """Take over the newest layout; end waiting messages if the topic was deleted."""
        layout = self._watch.layout
        if layout is self._lanes.layout:
            return
        if layout is not None:
            self._lanes.follow(layout)
        elif self._lanes.blocked and isinstance(error := self._watch.error, TopicRemoved):
            self._lanes.give_up(lambda record: True, lambda lane: error)

    def _examine_lanes(self) -> None:
        """Probe suspect lanes, and give up messages that have waited for too long."""
        now = time.monotonic()
        for lane in tuple(self._lanes.blocked):
            name = lane.segment.kafka_topic
            if lane.state is LaneState.SUSPECT and not lane.in_flight and now > self._probed.get(name, 0.0):
                # Only now: all refusals come before the answer, so none can be of a later seal.
                self._probed[name] = now + PROBE_SECONDS
                if self._probe is None:
                    self._probe = SealProbe(self._settings.kafka, self._probe_answered)
                self._probe.ask(name)
        self._lanes.give_up(lambda record: record.deadline < now, self._timeout_error)

    def _probe_answered(self, kafka_topic: str, is_sealed: bool | None) -> None:
        with self._lock:
            if is_sealed is None:
                return
            self._probed.pop(kafka_topic, None)
            for lane in tuple(self._lanes.blocked):
                if lane.segment.kafka_topic == kafka_topic and not lane.in_flight:
                    self._lanes.resolve(lane, is_sealed)

    def _send(self, segment: LayoutSegment, record: PendingMessage) -> bool:
        try:
            self._kafka.produce(
                segment.kafka_topic,
                record.value,
                record.key,
                PARTITION,
                on_delivery=partial(self._delivered, record),
                timestamp=record.timestamp,
                headers=record.headers,
            )
        except KafkaException as error:
            code = error.args[0].code()
            if code in GONE:
                return False
            raise delivery_error(error.args[0]) from error
        return True

    def _delivered(self, record: PendingMessage, error: KafkaError | None, message: Message) -> None:
        """Take a report of librdkafka."""
        lane = record.lane
        assert lane is not None
        with self._lock:
            if error is not None and error.code() in _REFUSALS and not self._is_closed:
                self._lanes.refuse(record, delivery_error(error))
                return
            self._count -= 1
            self._bytes -= record.size
            self._lanes.delivered(lane)
        if record.on_delivery is not None:
            offset = message.offset() if error is None else None
            record.on_delivery(None if error is None else delivery_error(error), self._delivery_report(record, offset))

    def _end_message(self, record: PendingMessage, error: AnabranchError) -> None:
        """End a message without success; its report follows outside of the lock."""
        self._count -= 1
        self._bytes -= record.size
        self._ended.append((record, error))

    def _delivery_report(self, record: PendingMessage, offset: int | None) -> DeliveryReport:
        lane = record.lane
        assert lane is not None
        return DeliveryReport(
            self.topic,
            record.key,
            record.value,
            lane.segment.id,
            lane.segment.kafka_topic,
            PARTITION,
            offset if offset is not None and offset >= 0 else None,
            lane.layout.created_at_ms or 0,
        )

    def _hash_of(self, key: bytes) -> int:
        hash = self._hashes.get(key)
        if hash is None:
            if len(self._hashes) >= MAX_CACHED_HASHES:
                self._hashes.clear()
            hash = self._hashes[key] = key_hash(key)
        return hash

    def _timeout_error(self, lane: Lane) -> DeliveryError:
        return DeliveryTimeout(
            f"segment {lane.segment.id} of {self.topic} takes no messages, and the controller has named no successor "
            f"within message.timeout.ms ({self._watch.error or 'it answers'}): check it and produce again"
        )
