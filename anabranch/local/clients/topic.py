"""Producer and consumers of one topic, as many as the demand asks for.

Stage: under `traffic`, whose thread produces; every consumer has a thread of its own. What goes wrong for a while - a
controller or broker away, a consumer replaced - is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from anabranch.local.clients.keys import DemandByKey
from anabranch.local.clients.ledger import MessageLedger
from anabranch_client import DeliveryReport, Producer, StreamConsumer
from anabranch_client.errors import AnabranchError, AssignmentLost, QueueFull

log = logging.getLogger(__name__)

SUBSCRIPTION = "billing"
FETCHED = 500
WAIT_SECONDS, RETRY_SECONDS = 0.2, 1.0


class ConsumerThread:
    """One stream consumer, which is made again when it fails."""

    def __init__(self, config: Mapping[str, Any], topic: str, name: str, ledger: MessageLedger) -> None:
        self._config, self._topic, self.name, self._ledger = config, topic, name, ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name} of {topic}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin to leave."""
        self._stop.set()

    @property
    def is_alive(self) -> bool:
        """Return whether it has not left yet."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait until it has left."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with StreamConsumer(self._config, self._topic, SUBSCRIPTION, self.name) as consumer:
                    while not self._stop.is_set():
                        self._consume(consumer)
            except (AnabranchError, KafkaException) as error:
                log.warning("consumer %s of %s begins again: %s", self.name, self._topic, error)
            except Exception:
                log.exception("consumer %s of %s begins again", self.name, self._topic)
            self._stop.wait(RETRY_SECONDS)

    def _consume(self, consumer: StreamConsumer) -> None:
        messages = consumer.consume(FETCHED, WAIT_SECONDS)
        self._ledger.receive((message.key() or b"", message.value() or b"") for message in messages)
        if messages:
            # The next owner gets them again.
            with suppress(AssignmentLost):
                consumer.acknowledge(messages[-1])


class TopicClients:
    """All clients of one topic."""

    def __init__(self, config: Mapping[str, Any], topic: str, demand: DemandByKey, life: str) -> None:
        """The topic exists. Raises `AnabranchError` when its layout cannot be read."""
        self.topic, self._config, self._demand = topic, config, demand
        self.ledger = MessageLedger(life)
        self._consumers: list[ConsumerThread] = []
        self._leaving: list[ConsumerThread] = []
        self._producer = Producer(config, topic)

    def set_consumers(self, count: int) -> None:
        """Have so many consumers; the last ones leave first."""
        while len(self._consumers) > count:
            leaving = self._consumers.pop()
            leaving.stop()
            self._leaving.append(leaving)
        self._leaving = [consumer for consumer in self._leaving if consumer.is_alive]
        while len(self._consumers) < count:
            name = f"{SUBSCRIPTION}-{len(self._consumers)}"
            if any(consumer.name == name for consumer in self._leaving):
                # Its goodbye would be that of the next one of its name.
                break
            self._consumers.append(ConsumerThread(self._config, self.topic, name, self.ledger))

    def produce(self, now: float) -> None:
        """Send what is due at `now`, seconds since 1970; with a full queue the rest is left out."""
        for key in self._demand.due(now):
            value = self.ledger.write_value(key)
            try:
                self._producer.produce(value, key, partial(self._delivered, key, value))
            except QueueFull:
                self.ledger.take_back(key)
                break
            except AnabranchError as error:
                self.ledger.take_back(key)
                log.warning("%s takes no messages: %s", self.topic, error)
                break
        self._producer.poll(0)

    def _delivered(self, key: bytes, value: bytes, error: AnabranchError | None, _: DeliveryReport) -> None:
        self.ledger.settle(key, value, error is None)

    def flush(self, seconds: float) -> None:
        """Wait for the reports of all messages."""
        self._producer.flush(seconds)

    def stop_consumers(self) -> None:
        """Begin to end the consumers."""
        for consumer in self._consumers:
            consumer.stop()

    def close(self, end: float) -> None:
        """Wait until the consumers have left, and end the producer, by `time.monotonic()` of `end` or soon after."""
        for consumer in (*self._consumers, *self._leaving):
            consumer.join(max(end - time.monotonic(), 0.0))
        self._producer.close(max(end - time.monotonic(), 0.0))
