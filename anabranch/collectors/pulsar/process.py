"""Pulsar collector as a process: assembled from the settings, stopped by signals."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from anabranch.admin.transport import controller_transport
from anabranch.collectors.checkpoint import MEMORY_FILE, load_checkpoint, save_checkpoint, write_delay
from anabranch.collectors.metrics import CollectorMeter, serve_collector
from anabranch.collectors.publisher import RecordPublisher
from anabranch.collectors.pulsar.calls import MAX_ANSWER_BYTES, REQUEST_SECONDS
from anabranch.collectors.pulsar.collector import PulsarCollector
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.status import STATUS_FILE, CollectorStatus, write_status
from runtime.telemetry.health import Heartbeat, ProcessHealth, call_on_signals
from schemas.settings.root import Settings

log = logging.getLogger(__name__)

STALLED_SECONDS = 120.0
"""Time without a status, which is made every few seconds, after which the collector counts as stalled."""
CLOSE_SECONDS = 5.0
"""Longest wait at a stop for Kafka's confirmations; what is left is said by the next one that starts."""
ONCE_SECONDS = 30.0
"""Longest time for `once`, and as long again for each 1,000 topics; then again until Kafka has confirmed all."""


def collect_pulsar(settings: Settings, ready: Callable[[str], None], *, once: bool = False) -> CollectorStatus:
    """Collect until SIGTERM or SIGINT, or with `once` until everything was read once; return the status.

    `ready` gets one line when the first answers have come. Raises `runtime.telemetry.serving.MetricsError`.
    """
    chosen, controller = settings.collect, settings.controller
    transport = controller_transport(settings, "anabranch-collect", REQUEST_SECONDS, max_body_bytes=MAX_ANSWER_BYTES)
    folder = settings.path(chosen.folder)
    announced = load_checkpoint(folder / MEMORY_FILE, controller.url, time.time_ns() // 1_000_000)
    publisher = RecordPublisher(settings.kafka_connection(), announced.retract)
    meter = CollectorMeter()
    heartbeat, is_reached = Heartbeat("the collector's loop", STALLED_SECONDS), False
    health = ProcessHealth(heartbeat.fault, lambda: None if is_reached else "no broker of the cluster has answered")
    server = serve_collector(meter.registry, settings, "collect-pulsar", health)
    collector = PulsarCollector(chosen, controller.url, BrokerReader.over(transport), announced, publisher)
    stop = threading.Event()
    call_on_signals(stop.set)
    began, is_ready = time.monotonic(), False
    written, write_at = -1, began

    def each(status: CollectorStatus) -> bool:
        nonlocal is_ready, is_reached, written, write_at
        heartbeat.beat()
        is_reached = any(broker.answers for broker in status.brokers)
        meter.observe(status)
        try:
            write_status(folder / STATUS_FILE, status)
            if announced.changes != written and time.monotonic() >= write_at:
                written, write_at = announced.changes, time.monotonic() + write_delay(announced)
                save_checkpoint(folder / MEMORY_FILE, controller.url, announced)
        except OSError as error:
            log.warning("cannot write to %s, [collect] folder: %s", folder, error)
        if not is_ready and status.brokers:
            is_ready = True
            ready(f"collector ready: {len(status.brokers)} brokers at {controller.url}")
        limit = ONCE_SECONDS * (1 + status.topics_listed / 1_000)
        return not once or not (collector.has_seen_all or time.monotonic() - began > limit)

    try:
        collector.run(stop, each)
    finally:
        collector.close()
        transport.close()
        if missing := publisher.close(ONCE_SECONDS if once else CLOSE_SECONDS):
            log.warning("%d records are not confirmed by Kafka: the next start says them again", missing)
        with contextlib.suppress(OSError):
            save_checkpoint(folder / MEMORY_FILE, controller.url, announced)
        if server is not None:
            server.close()
    return collector.status()
