"""Observer of the running job: metrics from batches and Spark's progress, outages from silence.

Stage: beside the query, in the driver. `streaming.job.meter` holds the figures, `streaming.job.watchdog` the rule.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming import StreamingQuery

from lake.upkeep import Upkeep
from runtime.telemetry.health import ProcessHealth
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.topics import CONTROL_EVENTS
from schemas.settings.root import Settings
from streaming.job.meter import StreamMeter, serve_meter
from streaming.job.watchdog import OUTAGE_TICKS, Watchdog, report_change
from streaming.sink.sink import WrittenBatch

log = logging.getLogger(__name__)


class JobWatch:
    """Metrics and watchdog of one run of the job; serves the metrics while its context is open."""

    def __init__(self, settings: Settings, upkeep: Upkeep) -> None:
        stream, self._upkeep = settings.stream, upkeep
        self._port, self._metrics, self._kafka = stream.metrics_port, settings.metrics, settings.kafka_connection()
        self._meter = StreamMeter(stream.tick_seconds, time.time())
        self._watchdog = Watchdog(stream.tick_seconds, OUTAGE_TICKS, time.monotonic())
        self._last_progress = -1
        self._expects_evaluations = False
        self._open = ExitStack()

    def __enter__(self) -> "JobWatch":
        """Serve the metrics, if enabled. Raises `MetricsError`."""
        if self._port:
            server = serve_meter(self._meter, self._port, self._metrics, ProcessHealth(self._stalled, self._not_ready))
            self._open.callback(server.close)
            probe = KafkaProbe(self._kafka, self._meter.observe_kafka)
            probe.start()
            self._open.callback(probe.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def expect_evaluations(self) -> None:
        """Start expecting evaluations, because the query has started."""
        self._watchdog.evaluated(time.monotonic())
        self._expects_evaluations = True

    def observe_batch(self, batch: WrittenBatch) -> None:
        """Record a written micro-batch."""
        if batch.newest_tick is not None:
            self._watchdog.evaluated(time.monotonic())
        self._meter.observe_batch(batch)

    def _stalled(self) -> str | None:
        # Before, the job may wait for the lease of another one.
        return self._watchdog.fault(time.monotonic()) if self._expects_evaluations else None

    def _not_ready(self) -> str | None:
        if not self._expects_evaluations:
            return "the query has not been started yet"
        return "topics are not evaluated" if self._watchdog.is_outage else None

    def look(self, query: StreamingQuery) -> None:
        """Record Spark's progress since the last call, and log an outage that began or ended."""
        for progress in new_progress(query, self._last_progress):
            self._last_progress = progress["batchId"]
            try:
                self._meter.observe_progress(progress)
            except (KeyError, TypeError, ValueError):
                batch_id = self._last_progress
                log.exception("what Spark says of batch %d is not understood", batch_id, extra={"batch_id": batch_id})
        now = time.monotonic()
        if (change := self._watchdog.look(now)) is not None:
            query_says = str(query.status["message"])
            report_change(change, self._watchdog.silent_seconds(now), self._watchdog.ticks, query_says)
        self._meter.observe_files(self._upkeep.files)
        self._meter.observe_watchdog(self._watchdog.missed_ticks(now), self._watchdog.is_outage)


def new_progress(query: StreamingQuery, after: int) -> list[Mapping[str, Any]]:
    """Return Spark's progress (some twenty) of the batches after number `after`, oldest first."""
    last = query.lastProgress
    if last is None or last["batchId"] <= after:
        return []
    if last["batchId"] == after + 1:
        return [last]
    return [progress for progress in query.recentProgress if progress["batchId"] > after]


ASK_SECONDS = 5.0
"""Pause between two questions."""
ANSWER_SECONDS = 3.0
"""Longest wait for an answer."""


class KafkaProbe(threading.Thread):
    """Asks Kafka for a topic until stopped, and reports its answers: a query that waits for Kafka says nothing."""

    def __init__(self, kafka: KafkaConnection, report: Callable[[bool], None]) -> None:
        super().__init__(name="kafka-probe", daemon=True)
        self._configuration = kafka.librdkafka({"log_level": 0})
        self._report = report
        self._stop_asking = threading.Event()

    def run(self) -> None:
        """Run the thread."""
        client = None
        while not self._stop_asking.is_set():
            try:
                client = client or AdminClient(self._configuration)
                client.list_topics(CONTROL_EVENTS.name, timeout=ANSWER_SECONDS)
                self._report(True)
            except KafkaException as error:
                # A client that has seen no broker may never ask again (`runtime.messaging.producer`).
                client = None
                log.debug("Kafka does not answer: %s", error)
                self._report(False)
            self._stop_asking.wait(ASK_SECONDS)

    def stop(self) -> None:
        """End the thread, which may still wait for an answer."""
        self._stop_asking.set()
