"""Traffic of a local run by real clients: topics, demand, and a count of every message.

Stage: `anabranch local traffic` with `[traffic] load = "clients"`. The counts are in `clients.json` of the run's folder
and, at the end, in its report. At the end the producers stop first, and the consumers read what is left.
"""

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from anabranch.admin.answers import Answered, Refused
from anabranch.admin.topics import ScalableTopics
from anabranch.local.clients.keys import DemandByKey, make_keys
from anabranch.local.clients.ledger import LedgerTotals, MessageLedger
from anabranch.local.demand import TopicDemand, demands
from anabranch.local.report import CLIENTS_FILE
from anabranch_client import DeliveryReport, Producer, StreamConsumer
from anabranch_client.errors import AnabranchError, AssignmentLost, QueueFull
from schemas.settings.root import Settings

log = logging.getLogger(__name__)

SUBSCRIPTION = "billing"
FETCHED = 500
WAIT_SECONDS, RETRY_SECONDS = 0.2, 1.0
STEP_SECONDS = 0.05
WRITE_SECONDS = 1.0
FLUSH_SECONDS, DRAIN_SECONDS, CLOSE_SECONDS = 10.0, 40.0, 30.0
"""Longest time for the reports of one topic, until everything is stored and read, and for the end of all clients."""


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
    """All clients of one topic, as many as the demand asks for.

    The caller's thread produces; every consumer has a thread of its own. What goes wrong for a while - a controller or
    broker away, a consumer replaced - is tried again.
    """

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


def run_clients(settings: Settings, topics: ScalableTopics, stop: threading.Event) -> dict[str, int]:
    """Produce and consume until `stop` is set, then read all that was produced; return the counts by name."""
    file = settings.path(settings.local.folder) / CLIENTS_FILE
    began_at, life, keys = time.time(), uuid.uuid4().hex[:8], make_keys()
    wanted = demands(settings.traffic, began_at)
    config = client_config(settings)
    clients: list[tuple[TopicDemand, TopicClients]] = []
    for demand in wanted:
        made = _begin_topic(topics, demand, config, DemandByKey(demand, keys, began_at), life, stop)
        if made is not None:
            clients.append((demand, made))
    log.info("%d topics, %d keys each", len(clients), len(keys))
    write_at = 0.0
    while not stop.wait(STEP_SECONDS):
        now = time.time()
        for demand, topic in clients:
            topic.set_consumers(max(1, next(iter(demand.consumers(now).values()))))
            topic.produce(now)
        if now >= write_at:
            write_at = now + WRITE_SECONDS
            _write_counts(file, _total([topic for _, topic in clients]).counts())
    made_clients = [topic for _, topic in clients]
    _drain(made_clients)
    _write_counts(file, _total(made_clients).counts())
    _close(made_clients)
    counts = _total(made_clients).counts()
    _write_counts(file, counts)
    log.info("stopped: %s", counts)
    return counts


def client_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration of all clients: access to Kafka and to the controller."""
    controller = settings.controller
    config: dict[str, Any] = {
        **settings.kafka_connection().librdkafka({"log_level": 2}),
        "anabranch.controller.url": controller.url,
    }
    if controller.token is not None:
        config["anabranch.controller.token"] = controller.token.get_secret_value()
    files = {"ca": controller.url_ca, "certificate": controller.url_certificate, "key": controller.url_key}
    for name, file in files.items():
        if file:
            config[f"anabranch.controller.ssl.{name}.location"] = str(settings.path(file))
    return config


def _begin_topic(
    topics: ScalableTopics,
    demand: TopicDemand,
    config: dict[str, Any],
    keyed: DemandByKey,
    life: str,
    stop: threading.Event,
) -> TopicClients | None:
    """Create the topic with its first consumer, and its clients; None if `stop` is set before that succeeds."""
    while not stop.is_set():
        reply = topics.create_topic(demand.topic, demand.initial_segments, {})
        if isinstance(reply, Answered) or (isinstance(reply, Refused) and reply.status == 409):
            reply = topics.register_consumer(demand.topic, SUBSCRIPTION, f"{SUBSCRIPTION}-0", "STREAM")
        if isinstance(reply, Answered):
            try:
                return TopicClients(config, demand.topic, keyed, life)
            except AnabranchError as error:
                log.warning("%s is tried again: %s", demand.topic, error)
        else:
            log.warning("the controller answered for %s: %s", demand.topic, reply)
        stop.wait(RETRY_SECONDS)
    return None


def _drain(topics: Sequence[TopicClients]) -> None:
    """Wait until everything is stored and read, at most `DRAIN_SECONDS`."""
    end = time.monotonic() + DRAIN_SECONDS
    for topic in topics:
        topic.flush(min(max(end - time.monotonic(), 0.0), FLUSH_SECONDS))
    while (unread := _total(topics).lost) and time.monotonic() < end:
        time.sleep(STEP_SECONDS)
    if unread:
        log.warning("%d messages were not read in %.0f s, and count as lost", unread, DRAIN_SECONDS)


def _close(topics: Sequence[TopicClients]) -> None:
    end = time.monotonic() + CLOSE_SECONDS
    for topic in topics:
        topic.stop_consumers()
    for topic in topics:
        topic.close(end)


def _total(topics: Sequence[TopicClients]) -> LedgerTotals:
    return reduce(LedgerTotals.plus, (topic.ledger.totals() for topic in topics), LedgerTotals())


def _write_counts(file: Path, counts: dict[str, int]) -> None:
    """Replace the file in one step; a full disk is logged and stops nothing."""
    scratch = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(counts))
        os.replace(scratch, file)
    except OSError as error:
        log.warning("cannot write %s: %s", file, error)
