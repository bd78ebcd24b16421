"""A collector's Prometheus metrics: its status as numbers (docs/pulsar.md)."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from anabranch.collectors.status import CollectorStatus
from runtime.telemetry.health import ProcessHealth
from runtime.telemetry.serving import MetricsServer, serve_metrics
from schemas.settings.root import Settings


class CollectorMetric(NamedTuple):
    """One metric: its name, which says its unit, its labels, and a sentence for people."""

    name: str
    labels: tuple[str, ...]
    sentence: str


BROKER_UP = CollectorMetric(
    "anabranch_collect_broker_up", ("broker",), "Whether the broker's load can be read: 1 or 0."
)
LOAD_AGE = CollectorMetric("anabranch_collect_load_age_seconds", ("broker",), "Since the broker's load was read last.")
LAG = CollectorMetric(
    "anabranch_collect_lag_seconds",
    ("broker",),
    "From the broker's last computation of its rates until they were read, at most.",
)
ANSWER = CollectorMetric(
    "anabranch_collect_answer_seconds", ("broker",), "How much of that the broker took to answer, body and all."
)
REFUSED = CollectorMetric(
    "anabranch_collect_refused_segments", ("broker",), "Segments whose rates in the broker's last answer are none."
)
TOPICS = CollectorMetric("anabranch_collect_topics", (), "Topics whose layout is known.")
UNREAD_TOPICS = CollectorMetric("anabranch_collect_unread_topics", (), "Listed topics whose layout was never read.")
UNREAD_CONSUMERS = CollectorMetric("anabranch_collect_unread_consumers", (), "Topics whose consumers were never read.")
UNLISTED = CollectorMetric("anabranch_collect_unlisted_namespaces", (), "Namespaces whose topics were never listed.")
UNCHANGED = CollectorMetric(
    "anabranch_collect_unchanged_seconds", ("broker",), "Since the broker's rates were other ones."
)
STUCK = CollectorMetric(
    "anabranch_collect_broker_stuck",
    ("broker",),
    "Whether the broker has stopped to compute its rates: they show traffic and do not change.",
)
KNOWN = CollectorMetric("anabranch_collect_segments_known", (), "Active segments of those.")
SEEN = CollectorMetric("anabranch_collect_segments_seen", (), "Of these, those whose rates a broker has said lately.")
CONSUMERS_AGE = CollectorMetric(
    "anabranch_collect_consumers_age_seconds", (), "Age of the oldest count of consumers: how late a change may be."
)
USED_CONSUMERS_AGE = CollectorMetric(
    "anabranch_collect_used_consumers_age_seconds", (), "The same of topics with consumers or traffic."
)
LAYOUTS_AGE = CollectorMetric(
    "anabranch_collect_layouts_age_seconds", (), "Age of the layout that was read longest ago."
)
SAMPLES = CollectorMetric("anabranch_collect_samples_total", (), "Samples handed to Kafka.")
EVENTS = CollectorMetric("anabranch_collect_events_total", (), "Announcements handed to Kafka.")
WAITING = CollectorMetric("anabranch_collect_waiting_records", (), "Records that Kafka has not confirmed.")
LOST = CollectorMetric(
    "anabranch_collect_lost_records_total", (), "Records with samples that Kafka has not taken in time."
)
CALLS = CollectorMetric("anabranch_collect_calls_total", (), "Calls of the cluster's REST interface.")
FAILED = CollectorMetric("anabranch_collect_failed_calls_total", (), "Calls without the answer that was asked for.")
TROUBLES = CollectorMetric(
    "anabranch_collect_troubles", (), "What cannot be read at the moment; the log and the doctor say it."
)

METRICS = (
    BROKER_UP,
    LOAD_AGE,
    LAG,
    ANSWER,
    REFUSED,
    UNCHANGED,
    STUCK,
    TOPICS,
    UNREAD_TOPICS,
    UNREAD_CONSUMERS,
    UNLISTED,
    KNOWN,
    SEEN,
    CONSUMERS_AGE,
    USED_CONSUMERS_AGE,
    LAYOUTS_AGE,
    SAMPLES,
    EVENTS,
    WAITING,
    LOST,
    CALLS,
    FAILED,
    TROUBLES,
)


class CollectorMeter:
    """The metrics of one collector, in a registry of their own. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made = {
            metric.name: Gauge(metric.name, metric.sentence, metric.labels, registry=self.registry)
            for metric in METRICS
        }

    def observe(self, status: CollectorStatus) -> None:
        """Set the metrics from a status."""
        for metric, value in (
            (TOPICS, status.topics),
            (UNREAD_TOPICS, status.topics_unread),
            (UNREAD_CONSUMERS, status.consumers_unread),
            (UNLISTED, status.namespaces_unlisted),
            (KNOWN, status.segments_known),
            (SEEN, status.segments_seen),
            (CONSUMERS_AGE, status.consumers_age_seconds),
            (USED_CONSUMERS_AGE, status.used_consumers_age_seconds),
            (LAYOUTS_AGE, status.layouts_age_seconds),
            (SAMPLES, status.samples),
            (EVENTS, status.events),
            (WAITING, status.waiting),
            (LOST, status.lost),
            (CALLS, status.calls),
            (FAILED, status.failed_calls),
            (TROUBLES, len(status.troubles)),
        ):
            self._made[metric.name].set(value)
        for metric in (BROKER_UP, LOAD_AGE, LAG, ANSWER, REFUSED, UNCHANGED, STUCK):
            self._made[metric.name].clear()
        for broker in status.brokers:
            self._made[BROKER_UP.name].labels(broker.broker).set(broker.answers)
            self._made[REFUSED.name].labels(broker.broker).set(broker.refused)
            self._made[STUCK.name].labels(broker.broker).set(broker.stuck)
            if broker.unchanged_seconds is not None:
                self._made[UNCHANGED.name].labels(broker.broker).set(broker.unchanged_seconds)
            if broker.load_age_seconds is not None:
                self._made[LOAD_AGE.name].labels(broker.broker).set(broker.load_age_seconds)
            if broker.lag_seconds is not None:
                self._made[LAG.name].labels(broker.broker).set(broker.lag_seconds)
            if broker.answer_seconds is not None:
                self._made[ANSWER.name].labels(broker.broker).set(broker.answer_seconds)


def serve_collector(
    registry: CollectorRegistry, settings: Settings, part: str, health: ProcessHealth
) -> MetricsServer | None:
    """Serve metrics and probes of the collector `part`; None: its port is 0. Raises `MetricsError`."""
    port = settings.collect.metrics_port
    return serve_metrics(registry, port, "[collect] metrics_port", settings.metrics, part, health) if port else None
