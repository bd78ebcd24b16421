"""A Kafka producer that goes on after a fatal error, and when it has gone deaf.

An idempotent producer that cannot tell any more what the broker has (its data went back, its rights were taken away)
gives up for good: librdkafka refuses every later message. Only a new producer sends again. Whatever was on its way in
the old one is reported as failed to its callback, so who must not lose it sends it again, as after any failed delivery.

A client that hears of no broker at all, as from one that was away and is not taken back yet, may forget all that it
knew and never ask again (librdkafka issue 5301, open in 2.16). So when nothing was delivered for `SILENT_SECONDS`,
though something should be, it is asked for Kafka's topics, and a new client beside it. If Kafka answers the new one
only, that takes over, with all messages that wait, in their order. A client that answers is left alone, however long
Kafka takes: what it has on its way could arrive behind what a new one sends.

Stage: under every long-lived producer: ticks, announcements, outcomes, traffic. One thread uses a `LastingProducer`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

log = logging.getLogger(__name__)

Delivered = Callable[[KafkaError | None, Message], None]
"""Told once for each message: how its delivery ended."""


SILENT_SECONDS = 10.0
"""Without a delivery for so long, with a message that should be delivered, a client is asked whether it hears Kafka."""
ANSWER_SECONDS = 5.0
"""Longest wait for the answer, of each client."""


class LastingProducer:
    """Produces by librdkafka's client as long as that works, then by another one of the same configuration."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        """`configuration` as librdkafka has it; its `error_cb` hears of all errors but fatal ones."""
        self._configuration = dict(configuration)
        self._on_error = self._configuration.pop("error_cb", None)
        self._producer = self._made()
        self._is_broken = False
        self._silent_since: float | None = None
        """When the first message was handed over of those since the last delivery; None: there is none."""
        self._hearing: _Hearing | None = None
        self._ask_at = 0.0
        """The next question whether Kafka is heard comes no sooner."""
        self._left: list[_Left] | None = None
        """While another client takes over: what the old one has not delivered."""

    def produce(self, topic: str, value: bytes | str | None, key: bytes | str | None, on_delivery: Delivered) -> None:
        """Hands over a message. Raises `BufferError` when the queue is full, `KafkaException` when it is refused."""
        self._renew_if_broken()
        if self._silent_since is None:
            self._silent_since = time.monotonic()
        try:
            self._producer.produce(topic, value, key, on_delivery=self._watched(on_delivery))
        except KafkaException as error:
            if not _is_fatal(error):
                raise
            self._is_broken = True
            self._renew_if_broken()
            self._producer.produce(topic, value, key, on_delivery=self._watched(on_delivery))

    def poll(self, seconds: float = 0) -> None:
        """Has the callbacks of deliveries called; waits for the first of them at most so long."""
        self._renew_if_broken()
        self._served(lambda: self._producer.poll(seconds))
        self._renew_if_broken()
        self._renew_if_deaf()

    def flush(self, seconds: float) -> int:
        """Waits until all is delivered; answers how much is not."""
        self._renew_if_broken()
        left = self._served(lambda: self._producer.flush(seconds))
        self._renew_if_broken()
        return left

    @property
    def waits(self) -> bool:
        """Whether something was handed over since the last delivery: then `poll` is to be called every second or so."""
        return self._silent_since is not None

    def purge(self) -> None:
        """Gives up on all that is not delivered; the callbacks are called."""
        self._producer.purge()
        self._served(lambda: self._producer.flush(1))

    def list_topics(self, seconds: float) -> Any:
        """Kafka's topics as it says; raises `KafkaException`."""
        self._renew_if_broken()
        return self._producer.list_topics(timeout=seconds)

    def _made(self) -> Producer:
        return Producer({**self._configuration, "error_cb": self._told})

    def _served(self, call: Callable[[], int]) -> int:
        """A call that serves callbacks; the client raises its fatal error out of whichever is the first after it."""
        try:
            return call()
        except (KafkaException, SystemError) as error:
            if not _is_fatal(error):
                raise
            self._is_broken = True
            return len(self._producer)

    def _watched(self, on_delivery: Delivered) -> Delivered:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._is_broken |= error is not None and error.fatal()
            if error is None:
                self._silent_since = time.monotonic() if len(self._producer) > 1 else None
            if self._left is not None and error is not None and error.code() in _PURGED:
                self._left.append(_Left(error.code() == KafkaError._PURGE_INFLIGHT, message, on_delivery))
                return
            on_delivery(error, message)

        return delivered

    def _told(self, error: KafkaError) -> None:
        try:
            self._is_broken |= error.fatal()
        except SystemError:
            # The client calls with its fatal error raised already; it comes out of the call that served this.
            return
        if not error.fatal() and self._on_error is not None:
            self._on_error(error)

    def _renew_if_broken(self) -> None:
        if not self._is_broken:
            return
        log.warning("a Kafka producer has failed for good; a new one takes over")
        self.purge()
        self._producer, self._is_broken, self._silent_since = self._made(), False, None

    def _renew_if_deaf(self) -> None:
        now = time.monotonic()
        if self._silent_since is None or now - self._silent_since < SILENT_SECONDS:
            self._hearing = None
        elif self._hearing is None and now >= self._ask_at:
            self._ask_at = now + SILENT_SECONDS
            self._hearing = _Hearing(self._producer, self._made)
            self._hearing.start()
        elif self._hearing is not None and not self._hearing.is_alive():
            hearing, self._hearing = self._hearing, None
            if hearing.of is self._producer and hearing.found is not None:
                self._give_over(hearing.found)

    def _give_over(self, to: Producer) -> None:
        """Another client takes over. What was on its way when the old one lost its connections goes first; Kafka may
        have taken that without having said so, and then it comes twice."""
        old, self._left, due = self._producer, [], time.monotonic() + ANSWER_SECONDS
        self.purge()
        while len(old) and time.monotonic() < due:
            self._served(lambda: old.flush(1))
        left, self._left = self._left, None
        log.warning("a Kafka producer does not hear Kafka, which is there; a new one takes over %d messages", len(left))
        self._producer, self._silent_since = to, time.monotonic() if left else None
        for one in sorted(left, key=lambda one: not one.was_on_its_way):
            key, value = one.message.key(), one.message.value()
            try:
                to.produce(str(one.message.topic()), value, key, on_delivery=self._watched(one.on_delivery))
            except (BufferError, KafkaException):
                one.on_delivery(KafkaError(KafkaError._PURGE_QUEUE), one.message)
        _end_elsewhere(old)


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class _Left(NamedTuple):
    """A message that was not delivered."""

    was_on_its_way: bool
    message: Message
    on_delivery: Delivered


class _Hearing(threading.Thread):
    """Asks whether a client hears Kafka, where a new one does."""

    def __init__(self, of: Producer, make: Callable[[], Producer]) -> None:
        super().__init__(name="hearing", daemon=True)
        self.of, self._make = of, make
        self.found: Producer | None = None
        """The new client, if it hears Kafka and the other does not."""

    def run(self) -> None:
        """The thread's body."""
        new = self._make()
        if _hears(new) and not _hears(self.of):
            self.found = new


def _hears(producer: Producer) -> bool:
    """Whether it has an answer of a broker that knows of brokers."""
    try:
        return bool(producer.list_topics(timeout=ANSWER_SECONDS).brokers)
    except KafkaException:
        return False


def _end_elsewhere(producer: Producer) -> None:
    """Ends a client in a thread of its own, as that may take a while."""
    kept = threading.Timer(1.0, lambda _: None, [producer])
    kept.daemon = True
    kept.start()


def _is_fatal(error: BaseException) -> bool:
    cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
    if not isinstance(cause, KafkaException):
        return False
    told = cause.args[0]
    return bool(told.fatal()) or told.code() == KafkaError._FATAL
