"""Metrics of the job, kept on the driver and served to Prometheus.

Stage: fed by the sink and the query's progress; workers are not involved. Counters start at zero with every run, as
Prometheus expects. `streaming.job.metrics` defines the metrics.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, get_args

import pyarrow as pa
import pydantic_core
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from decisions.autoscale.gates import BINDING_GATES, DESCRIPTIONS, Gate
from engine.kernel.records import INTERNAL_ERROR
from runtime.telemetry.health import UNWATCHED, ProcessHealth
from runtime.telemetry.serving import LOOPBACK, MetricsServer, serve_metrics
from schemas.kafka.messages import OutcomeStatus, RejectReason
from schemas.settings.processes import MetricsSettings
from schemas.tables.rows import DEAD_LETTERS, DECISIONS, EVENTS, HOLDS
from streaming.job.metrics import (
    ACTIVE_SEGMENTS,
    AUTO_MERGES,
    AUTO_SPLITS,
    BATCH_SECONDS,
    BATCHES,
    CONSUMERS_WANTED,
    DEAD_LETTERS_MADE,
    DECISIONS_MADE,
    EVALUATIONS,
    EVENTS_TAKEN,
    HOLDS_BEGUN,
    KAFKA_ANSWERS,
    LAG,
    LAKE_FILES,
    LAST_BATCH,
    LAST_EVALUATION,
    LAYOUTS_UNKNOWN,
    MESSAGES,
    METRICS,
    MISSED_TICKS,
    OPERATOR_SECONDS,
    OUTAGE,
    OUTCOMES,
    SAMPLES,
    STATE_BYTES,
    TICK_INTERVAL,
    TICK_LAG,
    WRITE_SECONDS,
    JobMetric,
)
from streaming.sink.sink import WrittenBatch


class TopicSeries(Collector):
    """Values of a metric by topic, in a fifth of the client library's memory. One thread writes, any may collect."""

    def __init__(self, metric: JobMetric) -> None:
        """Create a counter or gauge labelled by topic."""
        self._metric = metric
        self.values: dict[str, float] = {}
        """By topic; to be read by the thread that writes."""

    def set_all(self, values: Iterable[tuple[str, float]]) -> None:
        """Set values of some topics."""
        self.values.update(values)

    def add(self, topic: str) -> None:
        """Increment the value of a topic."""
        self.values[topic] = self.values.get(topic, 0) + 1

    def remove(self, topic: str) -> None:
        """Remove the series of a topic, if any."""
        self.values.pop(topic, None)

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric without series."""
        yield self._family()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metric with its current series."""
        family = self._family()
        for topic, value in self.values.copy().items():
            family.add_metric([topic], value)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self._metric.kind == "counter" else GaugeMetricFamily
        return kind(self._metric.name, self._metric.sentence, labels=self._metric.labels)


_METRIC_TYPES = {"counter": Counter, "gauge": Gauge}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Buckets of the histograms: a small commit takes milliseconds, a batch that catches up takes minutes."""
_PER_TOPIC = tuple(metric for metric in METRICS if metric.labels == ("topic",))
_KNOWN_LABELS: dict[str, tuple[str, ...]] = {
    HOLDS_BEGUN.name: (*(gate.value for gate in BINDING_GATES), INTERNAL_ERROR),
    DEAD_LETTERS_MADE.name: tuple(reason.value for reason in RejectReason),
    MESSAGES.name: ("accepted", "suppressed", "dead_letter"),
    SAMPLES.name: ("accepted", "insignificant", "stale", "refused"),
    EVENTS_TAKEN.name: ("consumer", "layout", "policy", "tick", "outcome", "delivery"),
    OUTCOMES.name: get_args(OutcomeStatus),
}
"""Label values that are exported from the start, as zero; types as in `schemas.kafka.messages`."""
_APPLIED_COUNTERS = {"split": AUTO_SPLITS, "merge": AUTO_MERGES}
"""Counters of applied actions, named by the PIP."""


class StreamMeter:
    """Metrics of one job, in their own registry. Thread-safe."""

    def __init__(self, tick_seconds: float, now: float) -> None:
        """Create the metrics; an evaluation is expected from `now` on, Unix time in seconds."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._metrics = {
            metric.name: _make_metric(metric, self.registry) for metric in METRICS if metric not in _PER_TOPIC
        }
        self._topic_series = {metric.name: TopicSeries(metric) for metric in _PER_TOPIC}
        for series in self._topic_series.values():
            self.registry.register(series)
        for name, values in _KNOWN_LABELS.items():
            for value in values:
                self._metrics[name].labels(value)
        self._open: dict[str, tuple[str, str]] = {}
        """Id and action of the last decision without an outcome, by topic."""
        self._held_by_consumers: set[str] = set()
        """Topics that would merge if they had fewer consumers."""
        self._set(TICK_INTERVAL, tick_seconds)
        self._set(LAST_EVALUATION, now)
        self._set(KAFKA_ANSWERS, 1)

    def observe_batch(self, batch: WrittenBatch) -> None:
        """Record a written micro-batch; called once per batch, after its last commit."""
        row = batch.row
        self._add(BATCHES, 1)
        self._set(LAST_BATCH, row["committed_at"] / 1000)
        self._add(OPERATOR_SECONDS, row["operator_ms"] / 1000)
        self._add(EVALUATIONS, row["evaluations"])
        for result, column in (
            ("accepted", "messages_accepted"),
            ("suppressed", "messages_suppressed"),
            ("dead_letter", "dead_letters"),
        ):
            self._add(MESSAGES, row[column], result)
        for result in _KNOWN_LABELS[SAMPLES.name]:
            self._add(SAMPLES, row.get(f"samples_{result}", 0), result)
        self._add(LAYOUTS_UNKNOWN, row.get("layouts_unknown", 0))
        self._collector(BATCH_SECONDS, "operator").observe(batch.operator_seconds)
        for table, seconds in batch.commit_seconds.items():
            self._collector(WRITE_SECONDS, table).observe(seconds)
        for reason, number in batch.count(DEAD_LETTERS, "reason").items():
            self._add(DEAD_LETTERS_MADE, number, reason)
        for layouts in batch.layouts:
            self._observe_layouts(layouts)
        self._observe_events(batch)
        self._observe_decisions(batch)
        holds = batch.count(HOLDS, "gate")
        for gate, number in holds.items():
            self._add(HOLDS_BEGUN, number, gate)
        if suppressed := holds.keys() & _SUPPRESSED.keys():
            for subject, gate in batch.where(HOLDS, "gate", suppressed, "subject", "gate"):
                self._topic_series[_SUPPRESSED[gate].name].add(subject)
        self._observe_consumers(batch)

    def _observe_consumers(self, batch: WrittenBatch) -> None:
        """Update the consumers that topics want, by their layouts and by the last hold of those that may merge."""
        held, merge_consumers = self._held_by_consumers, Gate.MERGE_CONSUMERS.value
        topics = {topic for layouts in batch.layouts for topic in layouts["subject"].to_pylist()}
        watched = held.union(*batch.where(HOLDS, "gate", [merge_consumers], "subject"))
        for topic, gate in batch.where(HOLDS, "subject", watched, "subject", "gate") if watched else ():
            (held.add if gate == merge_consumers else held.discard)(topic)
        active = self._topic_series[ACTIVE_SEGMENTS.name].values
        self._topic_series[CONSUMERS_WANTED.name].set_all(
            (topic, active[topic] - (topic in held)) for topic in topics | watched if topic in active
        )

    def _observe_events(self, batch: WrittenBatch) -> None:
        kinds = batch.count(EVENTS, "type")
        for kind, number in kinds.items():
            self._add(EVENTS_TAKEN, number, kind)
        if "outcome" in kinds:
            for subject, cause, body in batch.where(EVENTS, "type", ["outcome"], "subject", "cause", "body"):
                self._add(OUTCOMES, 1, cause)
                self._observe_outcome(subject, cause, pydantic_core.from_json(body)["decisionId"])
        if batch.newest_tick is not None:
            written_at = batch.row["committed_at"] / 1000
            self._set(TICK_LAG, max(0.0, written_at - batch.newest_tick))
            self._set(LAST_EVALUATION, written_at)

    def _observe_layouts(self, layouts: pa.RecordBatch) -> None:
        """Record layouts in order, since a topic may be deleted and created again."""
        layout_rows = zip(*(column.to_pylist() for column in layouts.columns), strict=True)
        for is_deleted, rows in groupby(layout_rows, lambda layout: layout[1] is None):
            if not is_deleted:
                self._topic_series[ACTIVE_SEGMENTS.name].set_all(rows)
                continue
            for topic, _ in rows:
                self._open.pop(topic, None)
                self._held_by_consumers.discard(topic)
                for series in self._topic_series.values():
                    series.remove(topic)

    def _observe_outcome(self, topic: str, status: str, decision_id: str) -> None:
        opened = self._open.get(topic)
        if opened is not None and opened[0] == decision_id:
            del self._open[topic]
            counter = _APPLIED_COUNTERS.get(opened[1])
            if status == "applied" and counter is not None:
                self._topic_series[counter.name].add(topic)

    def _observe_decisions(self, batch: WrittenBatch) -> None:
        for subject, decision_id, action, reason, trigger in batch.columns(
            DECISIONS, "subject", "decision_id", "action", "reason", "trigger"
        ):
            self._add(DECISIONS_MADE, 1, action, reason, trigger)
            self._open[subject] = decision_id, action

    def observe_progress(self, progress: Mapping[str, Any]) -> None:
        """Record Spark's progress of one micro-batch (`StreamingQuery.recentProgress`)."""
        for stage, millis in progress["durationMs"].items():
            self._collector(BATCH_SECONDS, stage).observe(millis / 1000)
        for source in progress["sources"]:
            for topic, records in lag_of(source["endOffset"], source["latestOffset"]).items():
                self._set(LAG, records, topic)
        states = progress["stateOperators"]
        self._set(STATE_BYTES, sum(state["memoryUsedBytes"] for state in states), "memory")
        self._set(STATE_BYTES, sum(state["customMetrics"].get("rocksdbSstFileSize", 0) for state in states), "disk")

    def observe_watchdog(self, missed_ticks: int, is_outage: bool) -> None:
        """Record the watchdog's state."""
        self._set(MISSED_TICKS, missed_ticks)
        self._set(OUTAGE, int(is_outage))

    def observe_kafka(self, answers: bool) -> None:
        """Record whether Kafka answers."""
        self._set(KAFKA_ANSWERS, int(answers))

    def observe_files(self, files: Mapping[str, int]) -> None:
        """Record the number of files of each table."""
        for table, number in files.items():
            self._set(LAKE_FILES, number, table)

    def _collector(self, metric: JobMetric, *labels: str) -> Any:
        collector = self._metrics[metric.name]
        return collector.labels(*labels) if metric.labels else collector

    def _add(self, metric: JobMetric, amount: float, *labels: str) -> None:
        self._collector(metric, *labels).inc(amount)

    def _set(self, metric: JobMetric, value: float, *labels: str) -> None:
        self._collector(metric, *labels).set(value)


_BY_NAME = {metric.name: metric for metric in METRICS}
_SUPPRESSED = {gate.value: _BY_NAME[words.metric] for gate, words in DESCRIPTIONS.items() if words.metric is not None}


def _make_metric(metric: JobMetric, registry: CollectorRegistry) -> Any:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.sentence, metric.labels, registry=registry, buckets=_SECONDS)
    return _METRIC_TYPES[metric.kind](metric.name, metric.sentence, metric.labels, registry=registry)


def lag_of(end: str | None, latest: str | None) -> dict[str, int]:
    """Return unread records by topic, from a Kafka source's offsets: JSON, topic to partition to offset."""
    reached, newest = json.loads(end or "null") or {}, json.loads(latest or "null") or {}
    return {
        topic: sum(offset - reached.get(topic, {}).get(partition, 0) for partition, offset in partitions.items())
        for topic, partitions in newest.items()
    }


def serve_meter(
    meter: StreamMeter, port: int, settings: MetricsSettings = LOOPBACK, health: ProcessHealth = UNWATCHED
) -> MetricsServer:
    """Serve scrapes and probes at `stream.metrics_port`; raises `MetricsError`."""
    return serve_metrics(meter.registry, port, "stream.metrics_port", settings, "stream", health)
