"""Producer of a scalable topic, in the style of `confluent_kafka.Producer`.

Stage: between the application and librdkafka. `watch` brings layouts, `lanes` decides which segment takes a message and
when, `outbox` which messages go together, one idempotent Kafka producer sends, `reports` calls `on_delivery`. A thread
sends what has waited for others; the rest is done in the calls of the application: `poll` or `flush` must be called
regularly, as with Kafka's own producer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from anabranch_client.config import PRODUCER_OPTIONS, ProducerSettings, kafka_client
from anabranch_client.controller import Controller
from anabranch_client.errors import (
    ClientClosed,
    QueueFull,
    TopicRemoved,
    delivery_error,
    discarded_error,
    successor_timeout,
)
from anabranch_client.lanes import Lanes, LaneState, Route
from anabranch_client.layout import LayoutSegment
from anabranch_client.messages import Headers, OnDelivery, PendingMessage, copied_headers, size_of_headers
from anabranch_client.names import PARTITION
from anabranch_client.outbox import Outboxes
from anabranch_client.probe import GONE, REFUSALS, SealProbe
from anabranch_client.reports import Reports, wait_for_reports
from anabranch_client.sent_batch import OVERHEAD_BYTES, SentBatch
from anabranch_client.watch import LayoutWatch

TICK_SECONDS = 0.02
"""Longest wait in one call of librdkafka while messages wait for a layout or a probe."""
SETTLED_AT_ONCE = 1_000
"""Most messages that end before their reports are called: the front of a long list is expensive to remove."""
_OPEN = LaneState.OPEN


class Producer:
    """Writes to one scalable topic; thread-safe, but not to be called by signal handlers.

    Delivery is at least once: a message whose acknowledgement was lost in the moment of a seal is written twice.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, timeout: float = 30.0) -> None:
        """Wait up to `timeout` seconds for the first layout. Raises `AnabranchError`."""
        self._settings = ProducerSettings.of(config)
        self._watch = LayoutWatch(Controller(self._settings.controller), topic)
        self.topic = self._watch.topic
        try:
            layout = self._watch.first(timeout)
            linger = {"linger.ms": self._settings.linger_ms - self._settings.own_linger_ms}
            options = {**self._settings.kafka, **PRODUCER_OPTIONS, **linger}
            self._kafka = kafka_client(confluent_kafka.Producer, options)
        except BaseException:
            self._watch.close()
            raise
        self._lock = threading.RLock()
        self._reports = Reports(self._lock)
        self._outcomes: list[PendingMessage | SentBatch] = []
        """Messages that librdkafka has reported, and batches of them."""
        self._lanes = Lanes(layout, self._send, self._reports.fail_message)
        send = self._kafka.produce_batch
        self._outboxes = Outboxes(self._settings, self._lanes, self._reports, self._outcomes, send)
        # Used for every message.
        self._routes, self._small_bytes = self._lanes.routes, self._settings.small_bytes
        self._probe = SealProbe(self._settings.kafka, self._lanes, self._lock)
        self._servers: list[int] = []
        """Threads that serve librdkafka: the first one; the others wait for what it brings."""
        self._timeouts_at = 0.0
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
        If Ctrl-C interrupts it, the message may have been accepted; then its report follows.
        """
        # Called for every message, so nothing is done here that the usual one does not need.
        if type(value) is str:
            value = value.encode()
        route, outboxes = self._routes.get(key) or self._find_route(key), self._outboxes  # type: ignore[arg-type]
        if (
            route is None
            or type(value) is not bytes
            or len(value) > self._small_bytes
            or headers
            or timestamp
            or not outboxes.batch
            or not (outboxes.is_armed or outboxes.arm(self._send_outboxes))
        ):
            self._produce_at_once(value, key, on_delivery, timestamp, headers)
            return
        encoded, lane = route
        outbox = lane.outbox
        outbox += ((value, encoded, on_delivery),)
        outboxes.touched.add(lane)
        if len(outbox) >= outboxes.batch or not outboxes.is_armed or lane.state is not _OPEN:
            self._send_outboxes()
            if self._is_closed and (value, encoded, on_delivery) in outbox:
                # Another thread has closed it meanwhile.
                outbox.remove((value, encoded, on_delivery))
                self._check_open()

    def _find_route(self, key: str | bytes | None) -> Route | None:
        """Return the route of a key that has none yet, or of no key; None if its message must be sent at once."""
        with self._lock:
            if self._is_closed or self._watch.layout is not self._lanes.layout:
                return None
            return self._lanes.find_route(key)

    def _produce_at_once(
        self, value: Any, key: str | bytes | None, on_delivery: OnDelivery | None, timestamp: int, headers: Headers
    ) -> None:
        """Send a message that waits for no other."""
        encoded = key.encode() if isinstance(key, str) else key
        size, options = OVERHEAD_BYTES + len(value or b"") + len(encoded or b""), None
        if headers or timestamp:
            size += size_of_headers(headers)
            options = {"timestamp": timestamp, "headers": copied_headers(headers)}
        reports, settings, lanes = self._reports, self._settings, self._lanes
        with self._lock:
            if self._outboxes.is_due:
                self._send_outboxes()
            if self._is_closed or self._watch.layout is not lanes.layout:
                self._check_open()
            count = reports.count
            if count >= settings.max_messages or (count and reports.bytes + size > settings.max_bytes):
                raise QueueFull(
                    f"{count} messages ({reports.bytes} bytes) of {self.topic} wait for their reports: call poll"
                )
            record = PendingMessage()
            record.key, record.value, record.options, record.on_delivery = encoded, value, options, on_delivery
            record.size, record.outcomes = size, self._outcomes
            record.number = self._outboxes.number
            record.deadline = time.monotonic() + settings.timeout_seconds
            record.is_accepted = False
            self._outboxes.number += 1
            reports.count += 1
            reports.bytes += size
            try:
                lanes.submit(record)
            except BaseException:
                if not record.is_accepted:
                    reports.count -= 1
                    reports.bytes -= size
                raise
            self._outboxes.admit(True)

    def _send_outboxes(self) -> None:
        with self._lock:
            if self._watch.layout is not self._lanes.layout:
                self._follow_layout()
            if not self._is_closed:
                self._outboxes.send()
            self._outboxes.admit(not self._is_closed and self._watch.layout is not None)

    def poll(self, timeout: float = 0) -> int:
        """Call the reports that are due; return their number, 0 inside of a report.

        Waits for the first one for `timeout` seconds, -1: forever.
        """
        if timeout == 0:
            return self._serve(0)
        end = float("inf") if timeout < 0 else time.monotonic() + timeout
        served = self._serve(0)
        while not served and not self._is_closed and not self._reports.is_calling:
            left = end - time.monotonic()
            if left <= 0:
                break
            served = self._serve(min(left, TICK_SECONDS if self._lanes.blocked else 1.0))
        return served

    def flush(self, timeout: float = -1) -> int:
        """Wait until all messages are reported, or inside of a report: ended; return the number of the others."""
        end = float("inf") if timeout < 0 else time.monotonic() + timeout
        while (awaited := self._awaited()) and (left := end - time.monotonic()) > 0:
            self._serve(0, flush_seconds=min(left, TICK_SECONDS))
        return awaited

    def _awaited(self) -> int:
        # Reports may have produced as well.
        if self._outboxes.is_due:
            self._send_outboxes()
        return self._reports.awaited

    def close(self, timeout: float = 30.0) -> int:
        """Flush, discard the rest with `MessageDiscarded`, and end; idempotent. Return the number discarded.

        What `on_delivery` raises is raised at the end.
        """
        if self._is_closed:
            return 0
        fault = self._flush_fully(timeout)
        with self._lock:
            if self._is_closed:
                return 0
            self._send_outboxes()
            self._is_closed = True
            self._outboxes.admit(False)
            # What another thread has added in between; who comes later sees that nothing more is admitted.
            self._outboxes.send()
            discarded = self._reports.unfinished
            self._lanes.give_up(lambda record: True, lambda lane: discarded_error())
        self._kafka.purge()
        self._watch.close()
        fault = self._flush_fully(1.0) or fault
        if fault is not None:
            raise fault
        return discarded

    @property
    def resent(self) -> int:
        """Number of messages so far that were sent again, to the successors of a sealed segment."""
        return self._lanes.resent

    def __len__(self) -> int:
        """Number of messages that have not been reported."""
        with self._lock:
            return self._reports.unreported + len(self._outboxes)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, timeout: float, flush_seconds: float | None = None) -> int:
        """Do everything that is due; return the number of reports."""
        is_waiting = timeout or flush_seconds is not None
        if self._outboxes.is_due if is_waiting else self._outboxes.is_overdue:
            self._send_outboxes()
        if self._lanes.blocked or self._watch.layout is not self._lanes.layout:
            with self._lock:
                self._follow_layout()
                self._examine_lanes()
        self._probe.poll()
        thread = threading.get_ident()
        try:
            self._servers += (thread,)
            if self._servers[0] == thread:
                self._serve_kafka(timeout, flush_seconds)
            elif timeout or flush_seconds:
                time.sleep(min(timeout or TICK_SECONDS, TICK_SECONDS) / 4)
        finally:
            self._servers.remove(thread)
        called = 0
        while self._outcomes:
            self._settle()
            called += self._reports.call_due()
        return called + self._reports.call_due()

    def _serve_kafka(self, timeout: float, flush_seconds: float | None) -> None:
        """Let librdkafka report; for one thread, as only then stored messages come in their order."""
        if flush_seconds is None:
            wait_for_reports(self._kafka.poll, timeout)
            return
        wait_for_reports(self._kafka.flush, flush_seconds)
        if self._lanes.blocked or not self._reports.count:
            # Nothing may be in flight: wait for a layout, a probe, or reports that another thread calls.
            wait_for_reports(self._kafka.poll, TICK_SECONDS / 4)

    def _flush_fully(self, timeout: float) -> Exception | None:
        """Flush, although reports raise; return what the last one raised."""
        end, fault = float("inf") if timeout < 0 else time.monotonic() + timeout, None
        while True:
            try:
                self.flush(max(end - time.monotonic(), 0))
            except Exception as raised:
                fault = raised
            else:
                return fault

    def _check_open(self) -> None:
        """Follow the layout. Raises `ClientClosed`, `TopicRemoved`."""
        if self._is_closed:
            raise ClientClosed(f"the producer of {self.topic} is closed: create another one")
        self._follow_layout()
        if self._watch.layout is None:
            raise (self._watch.error or TopicRemoved(self.topic)).with_traceback(None)

    def _follow_layout(self) -> None:
        """Take over the newest layout; end waiting messages if the topic was deleted."""
        layout = self._watch.layout
        if layout is self._lanes.layout:
            return
        if layout is not None:
            self._lanes.follow(layout)
            self._outboxes.admit(not self._is_closed)
        elif self._lanes.blocked and isinstance(error := self._watch.error, TopicRemoved):
            self._lanes.give_up(lambda record: True, lambda lane: error)

    def _examine_lanes(self) -> None:
        """Probe suspect lanes, and give up messages that have waited for too long."""
        self._lanes.advance()
        self._probe.ask()
        now = time.monotonic()
        if now > self._timeouts_at:
            # Not in every call: it looks at all waiting messages.
            self._timeouts_at = now + TICK_SECONDS
            self._lanes.give_up(
                lambda record: record.deadline < now,
                lambda lane: successor_timeout(self.topic, lane.segment.id, self._watch.error),
            )

    def _send(self, segment: LayoutSegment, record: PendingMessage) -> bool:
        # If a signal raises, then after `produce` has returned: nothing before it could.
        record.is_accepted = True
        try:
            options = record.options or {}
            self._kafka.produce(segment.kafka_topic, record.value, record.key, PARTITION, record, **options)
        except Exception as error:
            record.is_accepted = False
            if not isinstance(error, KafkaException):
                raise
            if error.args[0].code() in GONE:
                return False
            raise delivery_error(error.args[0]) from error
        return True

    def _settle(self) -> None:
        """Take librdkafka's reports, in their order."""
        ended = self._reports.ended
        with self._lock:
            outcomes, index = self._outcomes[:SETTLED_AT_ONCE], 0
            try:
                for outcome in outcomes:
                    lane = outcome.lane
                    if isinstance(outcome, SentBatch):
                        # From here on it is listed again.
                        outcome.is_listed = False
                        due = outcome.stored()
                        count = len(due)
                        # No call in these lines: see the theory in `lanes`.
                        index += 1
                        outcome.taken += count
                    elif outcome.error is None:
                        due = [outcome.due(None)]
                        index += 1
                        count = 1
                    else:
                        index += 1
                        self._settle_failure(outcome, outcome.error)
                        continue
                    lane.in_flight -= count
                    ended += due
                    if lane.state is not _OPEN and not lane.in_flight:
                        self._lanes.advance()
            finally:
                del self._outcomes[:index]

    def _settle_failure(self, record: PendingMessage, error: KafkaError) -> None:
        is_refused = error.code() in REFUSALS
        if is_refused and not self._is_closed:
            self._lanes.refuse(record, delivery_error(error))
            return
        self._lanes.delivered(record.lane)
        self._reports.fail_message(record, discarded_error() if is_refused else delivery_error(error))
