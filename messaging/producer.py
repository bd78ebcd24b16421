"""A Kafka producer that goes on after a fatal error.

An idempotent producer that cannot tell any more what the broker has (its data went back, its rights were taken away)
gives up for good: librdkafka refuses every later message. Only a new producer sends again. Whatever was on its way in
the old one is reported as failed to its callback, so who must not lose it sends it again, as after any failed delivery.

Stage: under every long-lived producer: ticks, announcements, outcomes, traffic. One thread uses a `LastingProducer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

log = logging.getLogger(__name__)

Delivered = Callable[[KafkaError | None, Message], None]
"""Told once for each message: how its delivery ended."""


class LastingProducer:
    """Produces by librdkafka's client as long as that works, then by another one of the same configuration."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        """`configuration` as librdkafka has it; its `error_cb` hears of all errors but fatal ones."""
        self._configuration = dict(configuration)
        self._on_error = self._configuration.pop("error_cb", None)
        self._producer = self._made()
        self._is_broken = False

    def produce(self, topic: str, value: bytes | str | None, key: bytes | str | None, on_delivery: Delivered) -> None:
        """Hands over a message. Raises `BufferError` when the queue is full, `KafkaException` when it is refused."""
        self._renew_if_broken()
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

    def flush(self, seconds: float) -> int:
        """Waits until all is delivered; answers how much is not."""
        self._renew_if_broken()
        left = self._served(lambda: self._producer.flush(seconds))
        self._renew_if_broken()
        return left

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
        self._producer, self._is_broken = self._made(), False


def _is_fatal(error: BaseException) -> bool:
    cause = error if isinstance(error, KafkaException) else error.__cause__ or error.__context__
    if not isinstance(cause, KafkaException):
        return False
    told = cause.args[0]
    return bool(told.fatal()) or told.code() == KafkaError._FATAL
