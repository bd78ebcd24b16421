"""A collector's Prometheus metrics: its status as numbers (docs/pulsar.md).

Stage: set by the loops of all collectors (`pulsar.process`, `kafka.process`, `bundle_process`).
"""

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from anabranch.collectors.status import CollectorStatus
from runtime.telemetry.health import ProcessHealth
from runtime.telemetry.serving import MetricsServer, serve_metrics
from schemas.settings.root import Settings


class CollectorMetric(NamedTuple):
    """One metric: its name with its unit, the field of a status that it shows, and a sentence."""

    name: str
    field: str
    sentence: str


OF_BROKERS = (
    CollectorMetric("anabranch_collect_broker_up", "answers", "Whether the broker's load can be read: 1 or 0."),
    CollectorMetric("anabranch_collect_load_age_seconds", "load_age_seconds", "Since the broker's load was read last."),
    CollectorMetric(
        "anabranch_collect_lag_seconds",
        "lag_seconds",
        "From the broker's last computation of its rates until they were read, at most.",
    ),
    CollectorMetric(
        "anabranch_collect_answer_seconds",
        "answer_seconds",
        "How much of that the broker took to answer, body and all.",
    ),
    CollectorMetric(
        "anabranch_collect_refused_segments", "refused", "Segments whose rates in the broker's last answer are none."
    ),
    CollectorMetric(
        "anabranch_collect_unchanged_seconds", "unchanged_seconds", "Since the broker's rates were other ones."
    ),
    CollectorMetric(
        "anabranch_collect_broker_stuck",
        "stuck",
        "Whether the broker has stopped to compute its rates: they show traffic and do not change.",
    ),
)
"""Fields of `BrokerStatus`, with the label `broker`; None has no series."""
OF_COLLECTOR = (
    CollectorMetric("anabranch_collect_topics", "topics", "Topics whose layout is known."),
    CollectorMetric("anabranch_collect_unread_topics", "topics_unread", "Listed topics whose layout was never read."),
    CollectorMetric(
        "anabranch_collect_unread_consumers", "consumers_unread", "Topics whose consumers were never read."
    ),
    CollectorMetric(
        "anabranch_collect_unlisted_namespaces", "namespaces_unlisted", "Namespaces whose topics were never listed."
    ),
    CollectorMetric("anabranch_collect_segments_known", "segments_known", "Active segments of those."),
    CollectorMetric(
        "anabranch_collect_segments_seen", "segments_seen", "Of these, those whose rates a broker has said lately."
    ),
    CollectorMetric(
        "anabranch_collect_consumers_age_seconds",
        "consumers_age_seconds",
        "Age of the oldest count of consumers: how late a change may be.",
    ),
    CollectorMetric(
        "anabranch_collect_used_consumers_age_seconds",
        "used_consumers_age_seconds",
        "The same of topics with consumers or traffic.",
    ),
    CollectorMetric(
        "anabranch_collect_layouts_age_seconds", "layouts_age_seconds", "Age of the layout that was read longest ago."
    ),
    CollectorMetric("anabranch_collect_samples_total", "samples", "Samples handed to Kafka."),
    CollectorMetric("anabranch_collect_events_total", "events", "Announcements handed to Kafka."),
    CollectorMetric("anabranch_collect_waiting_records", "waiting", "Records that Kafka has not confirmed."),
    CollectorMetric(
        "anabranch_collect_lost_records_total", "lost", "Records with samples that Kafka has not taken in time."
    ),
    CollectorMetric("anabranch_collect_calls_total", "calls", "Calls of the cluster's REST interface."),
    CollectorMetric(
        "anabranch_collect_failed_calls_total", "failed_calls", "Calls without the answer that was asked for."
    ),
    CollectorMetric(
        "anabranch_collect_troubles", "troubles", "What cannot be read at the moment; the log and the doctor say it."
    ),
)
"""Fields of `CollectorStatus`; of a list its length."""


class CollectorMeter:
    """The metrics of one collector, in a registry of their own. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made = {
            metric.name: Gauge(metric.name, metric.sentence, labels, registry=self.registry)
            for metrics, labels in ((OF_BROKERS, ["broker"]), (OF_COLLECTOR, []))
            for metric in metrics
        }

    def observe(self, status: CollectorStatus) -> None:
        """Set the metrics from a status."""
        for metric in OF_COLLECTOR:
            value = getattr(status, metric.field)
            self._made[metric.name].set(len(value) if isinstance(value, list) else value)
        for metric in OF_BROKERS:
            self._made[metric.name].clear()
            for broker in status.brokers:
                if (value := getattr(broker, metric.field)) is not None:
                    self._made[metric.name].labels(broker.broker).set(value)


def serve_collector(
    registry: CollectorRegistry, settings: Settings, part: str, health: ProcessHealth
) -> MetricsServer | None:
    """Serve metrics and probes of the collector `part`; None: its port is 0. Raises `MetricsError`."""
    port = settings.collect.metrics_port
    return serve_metrics(registry, port, "[collect] metrics_port", settings.metrics, part, health) if port else None
