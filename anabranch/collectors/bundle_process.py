"""The collector of bundles as a process: a round each minute, sent to Kafka, until SIGTERM or SIGINT.

Stage: called by `anabranch serve collector bundles`. It remembers nothing: each message says all of what it is about,
so a round that is lost is made good by the next.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import cast

from prometheus_client import CollectorRegistry

from anabranch.admin.transport import controller_transport
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.bundles import BundleRounds, Unread
from anabranch.collectors.load_reports import PublishedLoads
from anabranch.collectors.metrics import serve_collector
from anabranch.collectors.publisher import RecordPublisher
from anabranch.collectors.pulsar.calls import MAX_ANSWER_BYTES, REQUEST_SECONDS
from runtime.telemetry.health import Heartbeat, ProcessHealth, call_on_signals
from schemas.kafka.broker_messages import BrokerLoadReport, LocalBrokerReport
from schemas.kafka.messages import Source
from schemas.kafka.topics import BROKER_EVENTS, BROKER_LOAD
from schemas.settings.root import Settings

log = logging.getLogger(__name__)

ROUND_SECONDS = 60.0
"""As often as brokers compute their rates, and the job runs a cycle."""
CLOSE_SECONDS = 30.0
STALLED_SECONDS = 900.0
"""Of a large cluster a round takes minutes."""


def collect_bundles(
    settings: Settings,
    configuration: Mapping[str, str],
    say: Callable[[str], None],
    *,
    once: bool = False,
    published: PublishedLoads | None = None,
) -> bool:
    """Collect until told to stop, or with `once` for one round; return whether the last round succeeded.

    `say` gets a line a round; `configuration` and `published` as in `BundleRounds`.
    """
    transport = controller_transport(settings, "anabranch-collect", REQUEST_SECONDS, max_body_bytes=MAX_ANSWER_BYTES)
    publisher = RecordPublisher(settings.kafka_connection(), lambda record: None)
    rounds, stop = BundleRounds(transport, configuration, published), threading.Event()
    heartbeat, was_read = Heartbeat("the collector's loop", STALLED_SECONDS), False
    health = ProcessHealth(heartbeat.fault, lambda: None if was_read else "the last round was not read as a whole")
    server = serve_collector(CollectorRegistry(), settings, "collect-bundles", health)
    call_on_signals(stop.set)
    try:
        while not stop.is_set():
            began = time.monotonic()
            heartbeat.beat()
            try:
                messages = rounds.read(time.time_ns() // 1_000_000)
            except (Unread, ValueError) as error:
                was_read = False
                log.warning("a round is left out: %s", error)
            else:
                was_read = not rounds.unread
                for broker, why in rounds.unread.items():
                    log.warning("%s is left out of a round, and owners and policies with it: %s", broker, why)
                if any(why.is_load for why in rounds.unread.values()):
                    log.warning("the cluster is held until all loads are read")
                for message in messages:
                    is_load = isinstance(message, LocalBrokerReport | BrokerLoadReport)
                    source = BROKER_LOAD.name if is_load else BROKER_EVENTS.name
                    record = KafkaRecord(cast(Source, source), message.cluster, message.to_json().encode())
                    (publisher.report if is_load else publisher.announce)(record)
                publisher.poll()
                say(f"{messages[0].cluster}: {len(messages)} messages")
            if once:
                break
            while not stop.wait(1.0) and time.monotonic() - began < ROUND_SECONDS:
                publisher.poll()
    finally:
        if server is not None:
            server.close()
        transport.close()
        missing = publisher.close(CLOSE_SECONDS if once else 3.0)
    return was_read and not missing
