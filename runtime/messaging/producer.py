"""Kafka producer that replaces its client after a fatal error, or when that sees no broker any more.

An idempotent client that has lost track of the broker's state (its data was rolled back, its rights were revoked) fails
permanently: librdkafka refuses every later message, and only a new client can send again. The callbacks of messages in
flight report a failure, so a caller that must not lose them sends them again, as after any failed delivery.

A client that was told of no broker, as by one that has not rejoined the cluster yet, may never ask again (librdkafka
issue 5301, open in 2.16). So when nothing was delivered for `SILENT_SECONDS` although messages wait, both it and a new
client request Kafka's topics. If only the new one gets an answer, it takes over, with all waiting messages in order. A
client that gets an answer is kept, however slow Kafka is: its messages in flight could arrive after those of a new one.

Stage: under every long-lived producer: ticks, announcements, outcomes, traffic. Each brings its own options, such as
the compression (samples: `anabranch.collectors.publisher`). A `LastingProducer` is used by one thread.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

log = logging.getLogger(__name__)

ORDERED: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    # librdkafka would log every attempt to connect; the same errors arrive in `error_cb`.
    "log_level": 0,
}
"""Options of producers whose messages arrive once and in order, and whose owner logs errors."""

Delivered = Callable[[KafkaError | None, Message], None]
"""Called once for each message with the result of its delivery."""

SILENT_SECONDS = 10.0
"""Time without a delivery, while messages wait, after which a client's connection is checked."""
ANSWER_SECONDS = 5.0
"""Longest wait for the answer, of each client."""


class LastingProducer:
    """Produces through one librdkafka client, and through a new, equal one after it fails."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        """`configuration` is librdkafka's; its `error_cb` gets all errors except fatal ones."""
        self._configuration = dict(configuration)
        self._on_error = self._configuration.pop("error_cb", None)
        self._producer = self._new_client()
        self._is_broken = False
        self._silent_since: float | None = None
        """Time since which a message waits without any delivery; None: none waits."""
        self._check: _ConnectionCheck | None = None
        self._check_at = 0.0
        """Earliest time of the next connection check."""
        self._undelivered: list[_Undelivered] | None = None
        """Undelivered messages of the old client, while another one takes over."""

    def produce(self, topic: str, value: bytes | str | None, key: bytes | str | None, on_delivery: Delivered) -> None:
        """Hand over a message. Raises `BufferError` if the queue is full, `KafkaException` if it is refused."""
        self._replace_if_broken()
        if self._silent_since is None:
            self._silent_since = time.monotonic()
        try:
            self._producer.produce(topic, value, key, on_delivery=self._track_delivery(on_delivery))
        except KafkaException as error:
            if not _is_fatal(error):
                raise
            self._is_broken = True
            self._replace_if_broken()
            self._producer.produce(topic, value, key, on_delivery=self._track_delivery(on_delivery))

    def poll(self, seconds: float = 0) -> None:
        """Run delivery callbacks; wait up to `seconds` for the first."""
        self._replace_if_broken()
        self._run_callbacks(lambda: self._producer.poll(seconds))
        self._replace_if_broken()
        self._replace_if_deaf()

    def flush(self, seconds: float) -> int:
        """Wait for all deliveries; return the number still missing."""
        self._replace_if_broken()
        left = self._run_callbacks(lambda: self._producer.flush(seconds))
        self._replace_if_broken()
        return left

    @property
    def waits(self) -> bool:
        """True if a message waits without any delivery: then call `poll` about every second."""
        return self._silent_since is not None

    def purge(self) -> None:
        """Give up all undelivered messages; their callbacks are called."""
        self._producer.purge()
        self._run_callbacks(lambda: self._producer.flush(1))

    def list_topics(self, seconds: float) -> Any:
        """Return Kafka's topics. Raises `KafkaException`."""
        self._replace_if_broken()
        return self._producer.list_topics(timeout=seconds)

    def _new_client(self) -> Producer:
        return Producer({**self._configuration, "error_cb": self._on_client_error})

    def _run_callbacks(self, call: Callable[[], int]) -> int:
        """Run a call that serves callbacks; the client raises its fatal error from the first such call."""
        try:
            return call()
        except (KafkaException, SystemError) as error:
            if not _is_fatal(error):
                raise
            self._is_broken = True
            return len(self._producer)

    def _track_delivery(self, on_delivery: Delivered) -> Delivered:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._is_broken |= error is not None and error.fatal()
            if error is None:
                self._silent_since = time.monotonic() if len(self._producer) > 1 else None
            if self._undelivered is not None and error is not None and error.code() in _PURGED:
                was_in_flight = error.code() == KafkaError._PURGE_INFLIGHT
                self._undelivered.append(_Undelivered(was_in_flight, message, on_delivery))
                return
            on_delivery(error, message)

        return delivered

    def _on_client_error(self, error: KafkaError) -> None:
        try:
            self._is_broken |= error.fatal()
        except SystemError:
            # The client's fatal error is set already; the call that runs the callbacks raises it.
            return
        if not error.fatal() and self._on_error is not None:
            self._on_error(error)

    def _replace_if_broken(self) -> None:
        if not self._is_broken:
            return
        log.warning("a Kafka producer has failed for good; a new one takes over")
        self.purge()
        self._producer, self._is_broken, self._silent_since = self._new_client(), False, None

    def _replace_if_deaf(self) -> None:
        now = time.monotonic()
        if self._silent_since is None or now - self._silent_since < SILENT_SECONDS:
            self._check = None
        elif self._check is None and now >= self._check_at:
            self._check_at = now + SILENT_SECONDS
            self._check = _ConnectionCheck(self._producer, self._new_client)
            self._check.start()
        elif self._check is not None and not self._check.is_alive():
            check, self._check = self._check, None
            if check.checked is self._producer and check.replacement is not None:
                self._hand_over(check.replacement)

    def _hand_over(self, to: Producer) -> None:
        """Let another client take over; messages in flight go first.

        Kafka may have stored those without a confirmation, so they may arrive twice.
        """
        old, self._undelivered, due = self._producer, [], time.monotonic() + ANSWER_SECONDS
        self.purge()
        while len(old) and time.monotonic() < due:
            self._run_callbacks(lambda: old.flush(1))
        left, self._undelivered = self._undelivered, None
        log.warning("a Kafka producer does not hear Kafka, which is there; a new one takes over %d messages", len(left))
        self._producer, self._silent_since = to, time.monotonic() if left else None
        for pending in sorted(left, key=lambda pending: not pending.was_in_flight):
            key, value = pending.message.key(), pending.message.value()
            try:
                to.produce(
                    str(pending.message.topic()), value, key, on_delivery=self._track_delivery(pending.on_delivery)
                )
            except (BufferError, KafkaException):
                pending.on_delivery(KafkaError(KafkaError._PURGE_QUEUE), pending.message)
        _release_later(old)


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class _Undelivered(NamedTuple):
    """An undelivered message."""

    was_in_flight: bool
    message: Message
    on_delivery: Delivered


class _ConnectionCheck(threading.Thread):
    """Find out whether a new client sees Kafka while another does not."""

    def __init__(self, producer: Producer, make: Callable[[], Producer]) -> None:
        super().__init__(name="connection-check", daemon=True)
        self.checked, self._make = producer, make
        self.replacement: Producer | None = None
        """The new client, if it sees Kafka and the other does not."""

    def run(self) -> None:
        """Run the check."""
        new = self._make()
        if _is_answered(new) and not _is_answered(self.checked):
            self.replacement = new


def _is_answered(producer: Producer) -> bool:
    """Return True if a broker answers and knows of brokers."""
    try:
        return bool(producer.list_topics(timeout=ANSWER_SECONDS).brokers)
    except KafkaException:
        return False


def _release_later(producer: Producer) -> None:
    """Release the last reference in another thread, because ending a client may take a while."""
    timer = threading.Timer(1.0, lambda _: None, [producer])
    timer.daemon = True
    timer.start()


def _is_fatal(error: BaseException) -> bool:
    cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
    if not isinstance(cause, KafkaException):
        return False
    kafka_error = cause.args[0]
    return bool(kafka_error.fatal()) or kafka_error.code() == KafkaError._FATAL
