"""Kafka collector as a process: assembled from the settings, stopped by signals.

Stage: called by `anabranch serve collector kafka`. It remembers nothing: rates need two readings, and the controller
announces everything else.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import controller_transport
from anabranch.collectors.kafka.collector import KafkaCollector, Readings
from anabranch.collectors.kafka.segments import SegmentReport
from anabranch.collectors.metrics import CollectorMeter, serve_collector
from anabranch.collectors.publisher import RecordPublisher
from anabranch.collectors.status import SEGMENTS_FILE, STATUS_FILE, CollectorStatus, write_status
from runtime.telemetry.health import Heartbeat, ProcessHealth, call_on_signals
from schemas.settings.root import Settings

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
"""Longest wait for an answer of the controller."""
STALLED_SECONDS = 120.0
"""Time without a status, which is made every few seconds, after which the collector counts as stalled."""
CLOSE_SECONDS = 5.0
ONCE_SECONDS, ONCE_READINGS = 60.0, 6
"""Longest time for `once`, but not less than so many readings; as long again for each 100 segments."""
MAX_SHOWN = 1_000
"""Segments in the file for people."""


def collect_kafka(
    settings: Settings, readings: Readings, ready: Callable[[str], None], *, once: bool = False
) -> CollectorStatus:
    """Collect until SIGTERM or SIGINT, or with `once` until all rates are known; return the status.

    `ready` gets one line when Kafka has answered. Raises `runtime.telemetry.serving.MetricsError`.
    """
    chosen, controller = settings.collect, settings.controller
    transport = controller_transport(settings, "anabranch-collect", REQUEST_SECONDS)
    publisher = RecordPublisher(settings.kafka_connection(), lambda record: None)
    meter = CollectorMeter()
    heartbeat, is_reached = Heartbeat("the collector's loop", STALLED_SECONDS), False
    health = ProcessHealth(heartbeat.fault, lambda: None if is_reached else "no broker of the cluster has answered")
    server = serve_collector(meter.registry, settings, "collect-kafka", health)
    collector = KafkaCollector(chosen, controller.url, ScalableTopics(transport).layout, readings, publisher)
    stop = threading.Event()
    call_on_signals(stop.set)
    began, is_ready, file = time.monotonic(), False, settings.path(chosen.folder) / STATUS_FILE

    def observe(status: CollectorStatus) -> bool:
        nonlocal is_ready, is_reached
        heartbeat.beat()
        is_reached = any(broker.answers for broker in status.brokers)
        meter.observe(status)
        try:
            write_status(file, status)
            _write_segments(file.with_name(SEGMENTS_FILE), collector.segments()[:MAX_SHOWN])
        except OSError as error:
            log.warning("cannot write to %s, [collect] folder: %s", file.parent, error)
        if not is_ready and is_reached:
            is_ready = True
            ready(f"collector ready: {len(status.brokers)} brokers of Kafka, controller at {controller.url}")
        limit = max(ONCE_SECONDS, ONCE_READINGS * chosen.load_seconds) * (1 + status.segments_known / 100)
        return not once or not (collector.has_seen_all or time.monotonic() - began > limit)

    try:
        collector.run(stop, observe)
    finally:
        transport.close()
        if missing := publisher.close(CLOSE_SECONDS):
            log.warning("%d records are not confirmed by Kafka", missing)
        if server is not None:
            server.close()
    return collector.status()


def _write_segments(file: Path, segments: Iterable[SegmentReport]) -> None:
    """Replace the file in one step; raises `OSError`."""
    entries = [
        {
            "topic": view.topic,
            "segment": view.segment,
            "msgRateIn": None if view.rates is None else round(view.rates.msg_in, 1),
            "msgRateOut": None if view.rates is None else round(view.rates.msg_out, 1),
            "lag": view.lag,
        }
        for view in segments
    ]
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps({"at": time.time_ns() // 1_000_000, "segments": entries}))
    os.replace(scratch, file)
