"""Traffic of the local run: topics, consumers and load samples, as many clients would cause them.

Stage: closes the local loop. `DemandSessions` makes the controller hold the topics and consumers that
`anabranch.local.demand` asks for and reads the layouts; `SampleReports` produces to `segment-stats` what the brokers
that own the segments would report of it (`anabranch.local.samples`). Nothing here decides anything.

Everything is level-based: each pass compares what is wanted now with what is known, so a restart of the controller, of
the broker or of this process needs no special case. While the controller is down, the last known layouts stand in.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message

from anabranch.admin.answers import Answered, Fault, Refused, Unanswered
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import controller_transport
from anabranch.local.demand import TopicDemand, demands
from anabranch.local.samples import reported
from runtime.messaging.producer import LastingProducer
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import MAX_VALUE_BYTES, key_of
from schemas.kafka.topics import SEGMENT_STATS
from schemas.metadata import ScalableTopicMetadata
from schemas.settings.root import Settings

COUNTERS_FILE = "traffic.json"
MAX_DELAY_SECONDS = 10.0
FLUSH_SECONDS = 15.0

log = logging.getLogger(__name__)


class DemandSessions:
    """Reconciler of topics and consumers at the controller with the demand; caches the layouts."""

    def __init__(self, topics: ScalableTopics, demands: Iterable[TopicDemand], max_consumers: int) -> None:
        self._topics = topics
        self._demands = tuple(demands)
        self._max_consumers = max_consumers
        # None = unknown: after a start, consumers of an earlier life may still be registered.
        self._registered: dict[tuple[str, str], set[str] | None] = {}
        self.layouts: dict[str, ScalableTopicMetadata] = {}
        """The newest layout of each topic that the controller has answered with."""

    def synchronise(self, t: float, stop: threading.Event | None = None) -> Unanswered | None:
        """One pass over all topics; ends early with the fault as soon as the controller cannot be reached."""
        for demand in self._demands:
            if stop is not None and stop.is_set():
                break
            fault = self._read_layout(demand) or self._set_consumers(demand, t)
            if isinstance(fault, Unanswered):
                return fault
            if fault is not None:
                log.warning("the controller answered for %s: %s", demand.topic, str(fault)[:200])
        return None

    def _read_layout(self, demand: TopicDemand) -> Fault | None:
        reply = self._topics.layout(demand.topic)
        if _says(reply, 404):
            created = self._topics.create_topic(demand.topic, demand.initial_segments, {})
            if not isinstance(created, Answered) and not _says(created, 409):
                return created
            for subscription in demand.subscriptions:
                self._registered[demand.topic, subscription.name] = set()
            reply = self._topics.layout(demand.topic)
        if not isinstance(reply, Answered):
            return reply
        self.layouts[demand.topic] = reply.value.to_metadata()
        return None

    def _set_consumers(self, demand: TopicDemand, t: float) -> Fault | None:
        wanted_counts = demand.consumers(t)
        for subscription in demand.subscriptions:
            every = [f"{subscription.name}-{number}" for number in range(self._max_consumers)]
            wanted = set(every[: wanted_counts[subscription.name]])
            registered = self._registered.get((demand.topic, subscription.name))
            certain = set() if registered is None else registered
            for name in every:
                if name in wanted and name not in certain:
                    done = self._topics.register_consumer(demand.topic, subscription.name, name, subscription.type)
                    if not isinstance(done, Answered):
                        return done
                elif name not in wanted and (registered is None or name in registered):
                    done = self._topics.unregister_consumer(demand.topic, subscription.name, name)
                    if not isinstance(done, Answered) and not _says(done, 404):
                        return done
            self._registered[demand.topic, subscription.name] = wanted
        return None


def _says(reply: object, status: int) -> bool:
    return isinstance(reply, Refused) and reply.status == status


class Counters:
    """Counts of sent messages, cumulative over restarts, in a small file for people.

    Kafka's end offsets are authoritative. `garbage` stays for readers of the file, always 0.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.origin: float | None = None
        """The instant from which the demand counts its time, if not by the clock; seconds since 1970."""
        try:
            stored = json.loads(file.read_text())
            self.origin = stored.get("origin")
            self.counts.update({key: int(stored[key]) for key in ("starts", "sent", "delivered", "failed", "garbage")})
        except (OSError, ValueError, KeyError, TypeError):
            self.counts.clear()
        self.counts["starts"] += 1

    def add(self, name: str, number: int = 1) -> None:
        """Add `number` to the counter `name`: sent, delivered or failed."""
        with self._lock:
            self.counts[name] += number

    def write(self) -> None:
        """Replace the file in one step; a full disk is logged and stops nothing."""
        with self._lock:
            counts = {name: self.counts[name] for name in ("starts", "sent", "delivered", "failed", "garbage")}
        scratch = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps({**counts, "at": int(time.time() * 1000), "origin": self.origin}))
            os.replace(scratch, self._file)
        except OSError as error:
            log.warning("cannot write %s: %s", self._file, error)


class KafkaOutlet:
    """Idempotent producer that outlives the broker; a message undelivered for two minutes has failed."""

    def __init__(self, kafka: KafkaConnection, counters: Counters) -> None:
        self._counters = counters
        self._producer = LastingProducer(
            kafka.librdkafka(
                {
                    "client.id": "anabranch-traffic",
                    "enable.idempotence": True,
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "message.timeout.ms": 120_000,
                    "message.max.bytes": 2 * MAX_VALUE_BYTES,
                    "log_level": 2,
                    "error_cb": self._on_error,
                }
            )
        )
        self._down = False

    def send(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Hand one record to the client; its outcome is counted later."""
        self._counters.add("sent")
        try:
            self._producer.produce(topic, value, key, self._on_delivery)
        except (BufferError, KafkaException):
            self._counters.add("failed")

    def poll(self) -> None:
        """Process delivery reports."""
        self._producer.poll()

    def close(self) -> None:
        """Wait until everything is delivered, at most `FLUSH_SECONDS`; the rest counts as failed."""
        if left := self._producer.flush(FLUSH_SECONDS):
            log.warning("%d records were not delivered in %.0f s", left, FLUSH_SECONDS)
            self._producer.purge()

    def _on_delivery(self, error: KafkaError | None, _record: Message) -> None:
        self._counters.add("failed" if error else "delivered")
        self._down = self._down and error is not None

    def _on_error(self, error: KafkaError) -> None:
        if not self._down:
            self._down = True
            log.warning("Kafka: %s", error.str())


class SampleReports:
    """Produces the samples of one instant for every topic whose layout is known."""

    def __init__(self, topics: Iterable[TopicDemand], outlet: KafkaOutlet) -> None:
        self._demands = tuple(topics)
        self._outlet = outlet

    def report(self, t: float, layouts: dict[str, ScalableTopicMetadata]) -> int:
        """Send the samples of instant `t`; return the number of messages."""
        messages = reported(self._demands, layouts, t)
        for message in messages:
            self._outlet.send(SEGMENT_STATS.name, key_of(message).encode(), message.to_json().encode())
        self._outlet.poll()
        return len(messages)


def run_traffic(settings: Settings, stop: threading.Event) -> Counters:
    """Generate traffic until `stop` is set, then wait for its deliveries.

    Samples fall on multiples of the report interval, so that a restarted generator reports what this one would have.
    """
    counters = Counters(settings.path(settings.local.folder) / COUNTERS_FILE)
    if settings.traffic.counts_from_start:
        # At a tick of the job, so that ticks too come at the same time of each run.
        counters.origin = counters.origin or next_instant(time.time(), settings.stream.tick_seconds)
        counters.write()
        stop.wait(max(0.0, counters.origin - time.time()))
    else:
        counters.origin = None
    topics = demands(settings.traffic, counters.origin or 0.0)
    outlet = KafkaOutlet(settings.kafka_connection(), counters)
    reports = SampleReports(topics, outlet)
    with contextlib.closing(controller_topics(settings)) as served:
        sessions = DemandSessions(served, topics, settings.traffic.max_consumers)
        thread = threading.Thread(
            target=_keep_sessions, args=(sessions, settings.traffic.report_seconds, stop), name="sessions", daemon=True
        )
        thread.start()
        log.info("%d topics, a sample every %g s", len(topics), settings.traffic.report_seconds)
        while not stop.is_set():
            t = next_instant(time.time(), settings.traffic.report_seconds)
            if stop.wait(max(0.0, t - time.time())):
                break
            reports.report(t, dict(sessions.layouts))
            counters.write()
        thread.join(settings.executor.request_timeout_seconds)
    outlet.close()
    counters.write()
    log.info("stopped: %s", dict(counters.counts))
    return counters


def controller_topics(settings: Settings) -> ScalableTopics:
    """A client of the controller's admin interface, with the token when one is set."""
    seconds = settings.executor.request_timeout_seconds
    return ScalableTopics(controller_transport(settings, "anabranch-traffic", seconds))


def next_instant(now: float, interval: float) -> float:
    """The first multiple of `interval` after `now`, seconds since 1970."""
    return (now // interval + 1) * interval


def _keep_sessions(sessions: DemandSessions, interval: float, stop: threading.Event) -> None:
    failures = 0
    while not stop.is_set():
        if (fault := sessions.synchronise(time.time(), stop)) is None:
            if failures:
                log.info("the controller answers again")
            failures = 0
        else:
            failures += 1
            if failures == 1:
                log.warning("the controller cannot be reached (%s); going on with the layouts known so far", fault)
        stop.wait(min(interval * 2 ** min(failures, 10), max(interval, MAX_DELAY_SECONDS)) if failures else interval)
