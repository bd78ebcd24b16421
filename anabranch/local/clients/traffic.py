"""Traffic of a local run by real clients: topics, demand, and a count of every message.

Stage: `anabranch local traffic` with `[traffic] load = "clients"`. The counts are in `clients.json` of the run's folder
and, at the end, in its report. At the end the producers stop first, and the consumers read what is left.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from anabranch.admin.answers import Answered, Refused
from anabranch.admin.topics import ScalableTopics
from anabranch.local.clients.keys import DemandByKey, make_keys
from anabranch.local.clients.ledger import LedgerTotals
from anabranch.local.clients.topic import SUBSCRIPTION, TopicClients
from anabranch.local.demand import TopicDemand, demands
from anabranch.local.report import CLIENTS_FILE
from anabranch_client.errors import AnabranchError
from schemas.settings.root import Settings

log = logging.getLogger(__name__)

STEP_SECONDS = 0.05
WRITE_SECONDS = 1.0
RETRY_SECONDS = 1.0
FLUSH_SECONDS, DRAIN_SECONDS, CLOSE_SECONDS = 10.0, 40.0, 30.0
"""Longest time for the reports of one topic, until everything is stored and read, and for the end of all clients."""


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
