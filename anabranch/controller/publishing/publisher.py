"""Send the outbox to Kafka in commit order, keeping each entry until its delivery is confirmed.

Only a confirmed prefix of the outbox is ever dropped, and after any failure sending restarts at the oldest remaining
entry. So nothing is lost and the last message of a key is always current; a run of messages may be repeated, with
epochs and counts that listeners already know. A housekeeper that freezes while sending may, on waking up, still send
messages from its client's queue after its successor has sent newer ones. Therefore every message carries the number of
its sender, which rises with each new sender, and listeners ignore numbers lower than one they have seen.
"""

import itertools
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tenacity import Retrying, retry_if_result, sleep_using_event, stop_when_event_set, wait_exponential, wait_random

from anabranch.controller.leadership.election import Election, LeaderElectionState
from anabranch.controller.metadata.base import ABSENT, CallbackHandle, Check, MetadataStore, Put
from anabranch.controller.metadata.store_paths import OUTBOX, SENDER
from anabranch.controller.outbox.announcements import Announcement, stamped
from anabranch.controller.outbox.entries import OutboxEntry, StoredOutbox
from anabranch.controller.publishing.snapshots import SnapshotPage, Snapshots
from runtime.messaging.producer import ORDERED
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import MAX_VALUE_BYTES, Source
from schemas.kafka.topics import CONSUMER_EVENTS, CONTROL_EVENTS

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1_000
MAX_READ = 200
"""Entries read at once; each may be as large as a message."""
DELAY_SECONDS, MAX_DELAY_SECONDS, JITTER_SECONDS = 0.2, 5.0, 0.2
"""Delay between two attempts to send: the first, which doubles, the longest, and the random addition."""
MAX_SILENCE_SECONDS = 10.0
"""Without a confirmation for this long, while messages wait for one, the publisher counts as failing."""
MAX_FLUSH_SECONDS = 3.0
"""Longest wait at a clean stop for messages in flight; the rest stays in the outbox."""
IDLE_SECONDS = 0.5

_PRODUCER_CONFIG = {
    **ORDERED,
    "client.id": "anabranch-controller",
    "linger.ms": 0,
    "message.max.bytes": MAX_VALUE_BYTES + 65_536,
    "message.timeout.ms": 0,
    "topic.metadata.propagation.max.ms": 5_000,
    "queue.buffering.max.kbytes": 65_536,
}


class PublisherStatus(NamedTuple):
    """Delivery of announcements to Kafka, and the fault, if any."""

    working: bool
    error: str | None


@dataclass
class _Sent:
    """A message handed to the producer; `entry`: name of its outbox entry, empty for a snapshot."""

    entry: str
    confirmed: bool = False


class OutboxPublisher:
    """Publisher of the outbox in `nodes` to the brokers of `kafka`, with pages of `snapshots` in between."""

    def __init__(
        self, nodes: MetadataStore, kafka: KafkaConnection, snapshots: Snapshots, housekeeper: Election
    ) -> None:
        """The publisher works while this node is elected `housekeeper`."""
        self._nodes = nodes
        self._outbox = StoredOutbox(nodes)
        self._housekeeper = housekeeper
        self._announced = threading.Event()
        """Set when there may be something to do."""
        self._watch: CallbackHandle | None = None
        self._names: deque[str] = deque()
        """Names in the outbox that were not read yet."""
        self._list_at = 0.0
        """When the outbox is listed again even if no change was announced (`time.monotonic`)."""
        self._kafka, self._snapshots = kafka, snapshots
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._in_flight: deque[_Sent] = deque()
        self._failure: KafkaError | None = None
        self._error: str | None = f"not connected to Kafka at {kafka.bootstrap} yet"
        self._progress_at = time.monotonic()

    def start(self) -> None:
        """Start to send; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, for at most `MAX_FLUSH_SECONDS`, and end the thread."""
        self._stopping.set()
        self._announced.set()
        self._thread.join(MAX_FLUSH_SECONDS + MAX_DELAY_SECONDS)
        if self._watch is not None:
            self._watch.cancel()

    def waiting(self) -> int:
        """Return the number of commits with unconfirmed announcements."""
        return len(self._outbox.names())

    def status(self) -> PublisherStatus:
        """Return the status of delivery, for /healthz."""
        if not self._thread.is_alive():
            return PublisherStatus(False, "the publisher does not run")
        if self._leader_check() is None:
            return PublisherStatus(True, None)
        waited = time.monotonic() - self._progress_at
        if self._error is None and self._in_flight and waited > MAX_SILENCE_SECONDS:
            return PublisherStatus(False, f"Kafka at {self._kafka.bootstrap} has confirmed nothing for {waited:.0f} s")
        return PublisherStatus(self._error is None, self._error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._leader_check() is None:
                # Another node sends, or the sender is unknown.
                self._announced.wait(IDLE_SECONDS)
                self._announced.clear()
                continue
            Retrying(
                retry=retry_if_result(lambda failed_soon: failed_soon),
                wait=wait_exponential(DELAY_SECONDS, MAX_DELAY_SECONDS) + wait_random(0, JITTER_SECONDS),
                stop=stop_when_event_set(self._stopping),
                sleep=sleep_using_event(self._stopping),
                retry_error_callback=lambda _: False,
            )(self._attempt)

    def _attempt(self) -> bool:
        """Publish until a failure; return True if it came so soon that the next delay must be longer."""
        began = time.monotonic()
        try:
            if self._watch is None:
                self._watch = self._nodes.watch(OUTBOX, lambda *_: self._announced.set(), below=False)
            self._publish()
        except Exception as error:
            detail = error.args[0].str() if isinstance(error, KafkaException) else error
            self._trouble(f"announcements do not reach Kafka at {self._kafka.bootstrap}: {detail}")
            log.debug("sending again from the oldest one that is not confirmed", exc_info=True)
            return time.monotonic() - began < 2 * MAX_DELAY_SECONDS
        return False

    def _publish(self) -> None:
        """Send until a stop or another housekeeper. Raises when a delivery or the store fails."""
        if (check := self._leader_check()) is None:
            return
        sender = self._begin_to_send(check)
        producer = Producer(self._kafka.librdkafka({**_PRODUCER_CONFIG, "error_cb": self._on_error}))
        self._in_flight.clear()
        self._failure = None
        self._snapshots.restart()
        self._names.clear()
        self._list_at = 0.0
        last, stop_at = "", float("inf")
        try:
            while True:
                if self._announced.is_set():
                    self._announced.clear()
                    self._list_at = 0.0
                if self._leader_check() is None:
                    return
                entries, page = self._next(last)
                for name, records in entries:
                    for record in records:
                        self._send(producer, name, record, sender)
                    last = name
                for record in page.records() if page else ():
                    self._send(producer, "", record, sender)
                producer.poll(0.02 if self._in_flight else 0)
                self._drop_confirmed()
                if self._failure is not None:
                    raise KafkaException(self._failure)
                if self._stopping.is_set():
                    stop_at = min(stop_at, time.monotonic() + MAX_FLUSH_SECONDS)
                    done = not entries and not self._in_flight
                    if done or self._error is not None or time.monotonic() > stop_at:
                        return
                elif not entries and not self._in_flight:
                    if self._error is not None:
                        self._probe(producer)
                    self._announced.wait(min(IDLE_SECONDS, self._snapshots.due_in()))
        finally:
            producer.purge()
            producer.flush(1)

    def _leader_check(self) -> Check | None:
        """Return the check for all deletions by the housekeeper; None when another node is housekeeper."""
        leadership = self._housekeeper.leadership
        if leadership.state is not LeaderElectionState.LEADING or leadership.version is None:
            return None
        return Check(self._housekeeper.path, leadership.version)

    def _next(self, last: str) -> tuple[list[OutboxEntry], SnapshotPage | None]:
        """Return the next entries, and a page of snapshots only when no further entries wait."""
        room = MAX_IN_FLIGHT - len(self._in_flight)
        if room <= 0:
            return [], None
        if not self._names and time.monotonic() >= self._list_at:
            self._list(last)
        entries = self._outbox.read([self._names.popleft() for _ in range(min(room, len(self._names), MAX_READ))])
        if self._names or len(entries) == room or self._stopping.is_set():
            return entries, None
        if (page := self._snapshots.next_page()) is None:
            return entries, None
        # A change committed after the names were read may already be in the page. Of two such changes of one key, the
        # announcement of the first, sent after the page, would be older than the page; so the page omits the key.
        self._list(entries[-1].name if entries else last)
        return entries, page.without(self._keys(list(self._names)))

    def _list(self, after: str) -> None:
        self._list_at = time.monotonic() + IDLE_SECONDS
        self._names.extend(self._outbox.names(after))

    def _keys(self, names: list[str]) -> set[tuple[Source, str]]:
        """Return the Kafka topics and keys of the announcements in these entries."""
        keys: set[tuple[Source, str]] = set()
        for start in range(0, len(names), MAX_READ):
            for _, records in self._outbox.read(names[start : start + MAX_READ]):
                keys.update((record.source, record.key) for record in records)
        return keys

    def _begin_to_send(self, check: Check) -> int:
        """Return a number above those of all earlier senders, and of discarded stores, thanks to the clock."""
        node = self._nodes.get(SENDER)
        number = max(int(node.value) + 1 if node else 0, time.time_ns() // 1_000_000)
        self._nodes.commit(check, Put(SENDER, str(number).encode(), node.version if node else ABSENT))
        return number

    def _send(self, producer: Producer, entry: str, record: Announcement, sender: int) -> None:
        sent, value = _Sent(entry), stamped(record, sender)

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
                producer.produce(record.source, key=record.key, value=value, on_delivery=delivered)
                return
            except BufferError:
                if self._stopping.is_set() or self._failure is not None:
                    raise
                producer.poll(0.1)

    def _drop_confirmed(self) -> None:
        """Drop each entry whose last record is confirmed, as are all sent before it."""
        confirmed: list[str] = []
        while self._in_flight and self._in_flight[0].confirmed:
            name = self._in_flight.popleft().entry
            if name and not any(sent.entry == name for sent in itertools.islice(self._in_flight, 1)):
                confirmed.append(name)
        check = self._leader_check()
        if confirmed and check is not None:
            self._outbox.drop(confirmed, check)

    def _probe(self, producer: Producer) -> None:
        """Query Kafka: with nothing to send, only this shows that it is reachable again."""
        try:
            topics = producer.list_topics(timeout=1).topics
        except KafkaException as error:
            self._trouble(f"no Kafka broker at {self._kafka.bootstrap} answers: {error.args[0].str()}")
            return
        missing = [topic.name for topic in (CONTROL_EVENTS, CONSUMER_EVENTS) if topic.name not in topics]
        absent = f"Kafka at {self._kafka.bootstrap} has no topic {' and no topic '.join(missing)}; create it first"
        self._trouble(absent if missing else None)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._trouble(f"no Kafka broker at {self._kafka.bootstrap} can be reached")
        elif error.fatal():
            self._failure = error

    def _trouble(self, error: str | None) -> None:
        """Note the fault that stops announcements, None for none; only changes are logged."""
        if error == self._error:
            return
        self._error = error
        if error is None:
            log.info("announcements reach Kafka at %s", self._kafka.bootstrap)
        else:
            log.warning("%s; announcements wait in the outbox", error)
