"""Latest reported load of a topic's segments, read from Kafka on request (PIP-483 "Observability").

Stage: used by `anabranch.controller.service` for the stats of one topic only: the controller never decides by load. The
end of `segment-stats` is read on request, within bounds, and cached for some seconds. So nothing is read without a
request, and stats never wait for an unreachable Kafka.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from schemas.base import Wire
from schemas.codecs.columns import samples_of
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import SegmentSample, SegmentStats, SegmentStatsColumns, parse_message

log = logging.getLogger(__name__)

SOURCE = "segment-stats"
WINDOW_MS = 30_000
"""Period that is read: reporters sample every 10 s (PIP-483)."""
KEPT_SECONDS = 5.0
MAX_READ_SECONDS = 1.5
MAX_ANSWER_SECONDS = 2.0
"""Longest wait for brokers that can be connected to."""
ASK_SECONDS = 0.2
"""Interval between checks whether they can."""
MAX_READ_BYTES = 64 * 1_048_576
PAUSE_SECONDS = 15.0
"""Pause before Kafka is asked again after it did not answer."""
MAX_KEPT = 100
"""Maximum number of topics with cached loads."""


class ReportedLoad(Wire):
    """Rates of one segment, per second over 60 s (PIP-483 "SegmentLoadStats"), with reporter and time."""

    msg_rate_in: float
    bytes_rate_in: float
    msg_rate_out: float
    bytes_rate_out: float
    reporter: str
    at: int
    """Time at which Kafka received the sample, ms since 1970."""


class ReportedLoads:
    """Reader of reported loads: one read at a time, thread-safe."""

    def __init__(self, kafka: KafkaConnection, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._kafka, self._now_ms = kafka, now_ms
        self._alone = threading.Lock()
        self._kept: dict[str, tuple[float, dict[int, ReportedLoad]]] = {}
        self._not_before = 0.0

    def of(self, topic: str) -> dict[int, ReportedLoad]:
        """Return the latest load of each segment reported in the last `WINDOW_MS`, by segment id.

        Empty if there is none, Kafka does not answer, or other requests keep the reader busy.
        """
        loads = self._fresh(topic)
        if loads is not None or not self._alone.acquire(timeout=MAX_READ_SECONDS):
            return loads or {}
        try:
            loads = self._fresh(topic)
            if loads is None and time.monotonic() >= self._not_before:
                loads = self._read(topic)
                self._kept.pop(topic, None)
                while len(self._kept) >= MAX_KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[topic] = time.monotonic(), loads
            return loads or {}
        except KafkaException as error:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            log.info("the loads of %s cannot be read now: %s", topic, error)
            return {}
        finally:
            self._alone.release()

    def _fresh(self, topic: str) -> dict[int, ReportedLoad] | None:
        cached = self._kept.get(topic)
        return cached[1] if cached is not None and time.monotonic() < cached[0] + KEPT_SECONDS else None

    def _read(self, topic: str) -> dict[int, ReportedLoad]:
        down: list[KafkaError] = []
        consumer = Consumer(
            self._kafka.librdkafka(
                {
                    "group.id": "anabranch-loads",
                    "client.id": "anabranch-loads",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 50,
                    "log_level": 0,
                    "error_cb": lambda error: (
                        down.append(error) if error.code() == KafkaError._ALL_BROKERS_DOWN else None
                    ),
                }
            )
        )
        with contextlib.closing(consumer):
            if not (partitions := _partitions(consumer, down)):
                return {}
            since = self._now_ms() - WINDOW_MS
            times = [TopicPartition(SOURCE, number, since) for number in partitions]
            starts = consumer.offsets_for_times(times, timeout=MAX_ANSWER_SECONDS)
            open_partitions = {start.partition for start in starts if start.offset not in (OFFSET_END, -1)}
            if not open_partitions:
                return {}
            consumer.assign([start for start in starts if start.partition in open_partitions])
            return _newest(consumer, topic, open_partitions)


def _partitions(consumer: Consumer, down: list[KafkaError]) -> list[int]:
    """Return the partitions of the Kafka topic. Raises `KafkaException` at once if no broker is reachable."""
    end = time.monotonic() + MAX_ANSWER_SECONDS
    while True:
        try:
            return list(consumer.list_topics(SOURCE, timeout=ASK_SECONDS).topics[SOURCE].partitions)
        except KafkaException:
            consumer.poll(0)
            if down or time.monotonic() > end:
                raise


def _newest(consumer: Consumer, topic: str, partitions: set[int]) -> dict[int, ReportedLoad]:
    """Read until the end of every partition or a bound; return the latest load of each segment."""
    newest: dict[int, ReportedLoad] = {}
    key, end, size = topic.encode(), time.monotonic() + MAX_READ_SECONDS, 0
    while partitions and size < MAX_READ_BYTES and (left := end - time.monotonic()) > 0:
        for message in consumer.consume(1_000, min(left, 0.1)):
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                partitions.discard(message.partition() or 0)
                continue
            value = message.value()
            size += len(value or b"")
            at_ms = message.timestamp()[1]
            for reporter, segment, rates in _samples(topic, key, message.key(), value):
                if segment not in newest or newest[segment].at <= at_ms:
                    newest[segment] = ReportedLoad(**rates, reporter=reporter, at=at_ms)
    return newest


_RATES = tuple(name for name in SegmentSample.model_fields if name != "id")


def _samples(
    topic: str, name: bytes, key: bytes | None, value: bytes | None
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Yield reporter, segment and rates of each sample of a topic in a record; `name`: the topic in UTF-8."""
    # Most records are about other topics: parse only those that may contain the name, literally or escaped.
    if value is None or (key != name and name not in value and b"\\" not in value):
        return
    message = parse_message(SOURCE, key, value)
    if isinstance(message, SegmentStats) and message.topic == topic:
        for reported in message.segments:
            yield message.reporter, reported.id, reported.model_dump(exclude={"id"})
    elif isinstance(message, SegmentStatsColumns):
        samples = samples_of(message, topic)
        for segment, rates in zip(samples.segments.ids.tolist(), samples.rates.T.tolist(), strict=True):
            yield message.reporter, segment, dict(zip(_RATES, rates, strict=True))
