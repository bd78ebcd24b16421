"""The outbox to Kafka: in the order of the transactions, each entry kept until its delivery was confirmed.

Stage: a thread next to the service. Only the confirmed beginning of the outbox is ever dropped, and after any failure
sending begins again at the oldest entry that is left. So nothing is lost and the last message of a key is always the
truth; what may happen is that a run of messages comes twice, with epochs and counts that listeners know already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from controller.announcements import Record
from controller.snapshots import Page, Snapshots
from controller.store import LayoutStore, OutboxEntry, View
from schemas.kafka import CONSUMER_EVENTS, CONTROL_EVENTS
from schemas.messages import MAX_VALUE_BYTES

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1_000
FIRST_PAUSE_SECONDS = 0.2
MOST_PAUSE_SECONDS = 5.0
STALLED_SECONDS = 10.0
"""Without a confirmation for this long, with messages waiting for one, the publisher is not working."""
DRAIN_SECONDS = 3.0
"""Longest wait at a clean stop for what is in flight; what is left stays in the outbox."""
IDLE_SECONDS = 0.5

_PRODUCER_CONFIG = {
    "client.id": "anabranch-controller",
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 0,
    "message.max.bytes": MAX_VALUE_BYTES + 65_536,
    "message.timeout.ms": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.propagation.max.ms": 5_000,
    "queue.buffering.max.kbytes": 65_536,
    # librdkafka repeats itself at every attempt to connect; what it has to say arrives in `error_cb` too.
    "log_level": 0,
}


class PublisherStatus(NamedTuple):
    """Whether announcements reach Kafka, and if not, why not."""

    working: bool
    error: str | None


@dataclass
class _Sent:
    """A message that was handed to the producer; `seq` of a snapshot is that of the entry before it."""

    seq: int
    confirmed: bool = False


class Publisher:
    """Sends the outbox of `store` to the brokers at `bootstrap`, and the pages of `snapshots` in between."""

    def __init__(self, store: LayoutStore, bootstrap: str, snapshots: Snapshots) -> None:
        self._store = store
        self._bootstrap = bootstrap
        self._snapshots = snapshots
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._in_flight: deque[_Sent] = deque()
        self._failure: KafkaError | None = None
        self._error: str | None = f"not connected to Kafka at {bootstrap} yet"
        self._progress_at = time.monotonic()

    def start(self) -> None:
        """Begin to send; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, for at most `DRAIN_SECONDS`, and end the thread."""
        self._stopping.set()
        self._store.announced.set()
        self._thread.join(DRAIN_SECONDS + MOST_PAUSE_SECONDS)

    def status(self) -> PublisherStatus:
        """How it goes, for /healthz."""
        if not self._thread.is_alive():
            return PublisherStatus(False, "the publisher does not run")
        waited = time.monotonic() - self._progress_at
        if self._error is None and self._in_flight and waited > STALLED_SECONDS:
            return PublisherStatus(False, f"Kafka at {self._bootstrap} has confirmed nothing for {waited:.0f} s")
        return PublisherStatus(self._error is None, self._error)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._publish()
            except Exception as error:
                detail = error.args[0].str() if isinstance(error, KafkaException) else error
                self._trouble(f"announcements do not reach Kafka at {self._bootstrap}: {detail}")
                log.debug("sending again from the oldest one that is not confirmed", exc_info=True)
                if time.monotonic() - began > 2 * MOST_PAUSE_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                self._stopping.wait(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)

    def _publish(self) -> None:
        """Send until the publisher stops; raises when a delivery fails or the store cannot be read or written."""
        config = {**_PRODUCER_CONFIG, "bootstrap.servers": self._bootstrap, "error_cb": self._on_error}
        producer = Producer(config)
        self._in_flight.clear()
        self._failure = None
        self._snapshots.restart()
        last, stop_at = 0, float("inf")
        try:
            while True:
                self._store.announced.clear()
                with self._store.read() as view:
                    entries, page = self._next(view, last)
                for seq, record in entries:
                    self._send(producer, seq, record)
                    last = seq
                for record in page.records() if page else ():
                    self._send(producer, last, record)
                producer.poll(0.02 if self._in_flight else 0)
                self._drop_confirmed()
                if self._failure is not None:
                    raise KafkaException(self._failure)
                if self._stopping.is_set():
                    stop_at = min(stop_at, time.monotonic() + DRAIN_SECONDS)
                    done = not entries and not self._in_flight
                    if done or self._error is not None or time.monotonic() > stop_at:
                        return
                elif not entries and not self._in_flight:
                    if self._error is not None:
                        self._probe(producer)
                    self._store.announced.wait(min(IDLE_SECONDS, self._snapshots.due_in()))
        finally:
            producer.purge()
            producer.flush(1)

    def _next(self, view: View, last: int) -> tuple[list[OutboxEntry], Page | None]:
        """What to send now: the next entries, and a page of snapshots only when these are all there are."""
        room = MAX_IN_FLIGHT - len(self._in_flight)
        if room <= 0:
            return [], None
        entries = view.outbox_after(last, room)
        if len(entries) == room or self._stopping.is_set():
            return entries, None
        return entries, self._snapshots.next_page(view)

    def _send(self, producer: Producer, seq: int, record: Record) -> None:
        sent = _Sent(seq)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                sent.confirmed = True
                self._trouble(None)
                self._progress_at = time.monotonic()
            elif self._failure is None:
                self._failure = error

        if not self._in_flight:
            self._progress_at = time.monotonic()
        self._in_flight.append(sent)
        while True:
            try:
                producer.produce(record.source, key=record.key, value=record.value, on_delivery=delivered)
                return
            except BufferError:
                if self._stopping.is_set() or self._failure is not None:
                    raise
                producer.poll(0.1)

    def _drop_confirmed(self) -> None:
        confirmed = 0
        while self._in_flight and self._in_flight[0].confirmed:
            confirmed = self._in_flight.popleft().seq
        if confirmed:
            with self._store.write() as transaction:
                transaction.drop_outbox_until(confirmed)

    def _probe(self, producer: Producer) -> None:
        """With nothing to send, only a question shows that Kafka is there (again)."""
        try:
            known = producer.list_topics(timeout=1).topics
        except KafkaException as error:
            self._trouble(f"no Kafka broker at {self._bootstrap} answers: {error.args[0].str()}")
            return
        missing = [topic.name for topic in (CONTROL_EVENTS, CONSUMER_EVENTS) if topic.name not in known]
        absent = f"Kafka at {self._bootstrap} has no topic {' and no topic '.join(missing)}; create it first"
        self._trouble(absent if missing else None)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._trouble(f"no Kafka broker at {self._bootstrap} can be reached")
        elif error.fatal():
            self._failure = error

    def _trouble(self, error: str | None) -> None:
        """Note what keeps announcements from Kafka, None for nothing; only a change is worth a line in the log."""
        if error == self._error:
            return
        self._error = error
        if error is None:
            log.info("announcements reach Kafka at %s", self._bootstrap)
        else:
            log.warning("%s; announcements wait in the outbox", error)
