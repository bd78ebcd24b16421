"""Latency from a consumer's registration to the commit of its decision, idle and under samples.

Run as `python -m benchmarks.latency [--quick] [--case alone]`. Each event is of a topic of its own, of one segment and
two consumers: each leads to one split. Measured from the event's own time to the instant at which `decisions` was
committed, which is when an executor can act; the batch goes on after that. Ticks over every topic, other consumers'
events and the controller's snapshots go on all the time. Samples come in messages of a topic, and in columns. Stage by
stage: medians over the batches of the events. Prints a table and writes benchmarks/latency.json, but of one case alone
nothing.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Producer
from pyspark.sql.streaming import StreamingQuery

from benchmarks.feeds import feeding
from benchmarks.fleet import BenchmarkFleet, MessageSender
from benchmarks.jobs import batches_of, on_a_broker
from benchmarks.processes import cpu_seconds
from benchmarks.record import machine_now, percentile, publish
from lake.tables import open_table
from schemas.kafka.messages import ConsumerEvent
from schemas.kafka.topics import CONSUMER_EVENTS
from schemas.settings.root import Settings
from schemas.tables.rows import DECISIONS
from streaming.job.job import start_query
from streaming.job.session import start_session
from streaming.job.ticks import TickWriter
from streaming.sink.sink import LakeSink, WrittenBatch

EVENTS = 500
"""Of each scenario: so many that five are beyond the 99th percentile."""
QUICK_EVENTS = 30
EVENT_SECONDS = 0.25
"""Between two events, on average."""
LOADED_TOPICS = 10_000
SEGMENTS = 10
SAMPLES_PER_SECOND = LOADED_TOPICS * SEGMENTS
TICK_SECONDS = 60.0
IDLE_SECONDS = 30.0
FORMS: dict[str, dict[str, int]] = {"a message a topic": {}, "in columns": {"brokers": 10, "per_message": 1_000}}
"""Of samples: arguments of their feed."""
ALONE = "alone"
CASES = (ALONE, *FORMS)


@click.command()
@click.option("--quick", is_flag=True, help=f"{QUICK_EVENTS} events of each case instead of {EVENTS}.")
@click.option(
    "--case", "chosen", multiple=True, type=click.Choice(CASES), help="Only this; may be given several times."
)
def main(quick: bool, chosen: tuple[str, ...]) -> None:
    """Measures, prints, writes."""
    cases = chosen or CASES
    events = QUICK_EVENTS if quick else EVENTS
    with tempfile.TemporaryDirectory() as work, on_a_broker(Path(work), 16, 50_000) as settings:
        report = {"machine": machine_now(), **_measure(settings, events, cases)}
    publish("latency", report, quick or cases != CASES)


def _measure(settings: Settings, events: int, cases: Sequence[str]) -> dict[str, Any]:
    spark = start_session(settings)
    written: list[WrittenBatch] = []
    bootstrap = settings.kafka.bootstrap
    fleet: dict[str, Any] = {"topics": LOADED_TOPICS, "segments": SEGMENTS, "prefix": "loaded"}
    ticks, jvm = TickWriter(settings.kafka_connection(), TICK_SECONDS), spark.sparkContext._gateway.proc
    try:
        query = start_query(spark, settings, LakeSink(settings.lake_path, ticks.ask, written.append))
        _send_layouts(settings, BenchmarkFleet(LOADED_TOPICS, SEGMENTS, 0.1, "loaded"))
        _until(lambda: sum(row["events"] for row in batches_of(settings)) >= LOADED_TOPICS, query)
        ticks.start()
        scenarios = {}
        with feeding("announcements", bootstrap, **fleet):
            _events(settings, "warm-up", 20, query, written)
            if ALONE in cases:
                scenarios[ALONE] = _scenario(settings, query, written, ALONE, events, jvm)
            for form, about in FORMS.items():
                if form not in cases:
                    continue
                with feeding("samples", bootstrap, seconds=1, **fleet, **about):
                    name = form.replace(" ", "-")
                    _events(settings, f"{name}-warm-up", 20, query, written)
                    load = f"{SAMPLES_PER_SECOND:,} samples/s {form}"
                    scenarios[load] = _scenario(settings, query, written, name, events, jvm)
        _until(lambda: not query.status["isDataAvailable"], query)
        scenarios["idle cores"] = _idle_cores(jvm, IDLE_SECONDS)
        query.stop()
    finally:
        ticks.stop()
        spark.stop()
    return scenarios


def _scenario(
    settings: Settings, query: StreamingQuery, written: list[WrittenBatch], name: str, events: int, jvm: Any
) -> dict[str, Any]:
    began, before, spent = time.time(), len(written), cpu_seconds(jvm.pid)
    measured = _events(settings, name, events, query, written)
    seconds, latencies = time.time() - began, [sample.milliseconds for sample in measured]
    spent = cpu_seconds(jvm.pid) - spent
    return {
        "events": events,
        "p50_ms": round(percentile(latencies, 0.50)),
        "p99_ms": round(percentile(latencies, 0.99)),
        "most_ms": round(max(latencies)),
        "stages_ms": {
            stage: round(statistics.median(stage_values)) for stage, stage_values in _stages(measured).items()
        },
        "cpu_ms_a_batch": round(1000 * spent / (len(written) - before)),
        "slowest": _slowest(measured),
        "samples_per_second": round(sum(sample.row["samples"] for sample in written[before:]) / seconds),
    }


def _stages(measured: "list[Measured]") -> dict[str, list[float]]:
    """Return the milliseconds of each stage before and after each event's decision."""
    stages: dict[str, list[float]] = {}
    for sample in measured:
        for stage, value in sample.stages.items():
            stages.setdefault(stage, []).append(value)
    return stages


def _slowest(measured: "list[Measured]", count: int = 8) -> list[dict[str, Any]]:
    """The batches that the slowest events waited for, each once, and what was in them."""
    by_batch: dict[int, dict[str, Any]] = {}
    for sample in sorted(measured, key=lambda sample: -sample.milliseconds):
        row = sample.batch.row
        counts = {name: row[name] for name in ("events", "samples", "decisions", "holds")}
        about = {
            "at": row["batch_at"],
            "batch": row["batch_id"],
            "ms": sample.milliseconds,
            "stages_ms": sample.stages,
            **counts,
        }
        by_batch.setdefault(row["batch_id"], about)
        if len(by_batch) == count:
            break
    return list(by_batch.values())


@dataclass
class Measured:
    """An event and its decision."""

    at: int
    """Of the event, milliseconds."""
    batch: WrittenBatch
    progress: dict[str, Any] | None
    """What Spark says of the batch; it keeps that of some."""

    @property
    def milliseconds(self) -> int:
        """To the commit of `decisions`."""
        assert self.batch.decided_at is not None
        return self.batch.decided_at - self.at

    @property
    def stages(self) -> dict[str, int]:
        """Milliseconds of each stage up to the commit, and of what the batch did after that."""
        batch = self.batch
        operator, decisions = 1000 * batch.operator_seconds, 1000 * batch.commit_seconds[DECISIONS.name]
        waited = max(0, batch.row["batch_at"] - self.at)
        by_stage = {
            "waits for its batch": waited,
            "offsets, plan, logs": self.milliseconds - waited - operator - decisions,
            "Kafka, decode, shuffle, state": operator,
            "of that in the engine": batch.row["operator_ms"],
            "decisions committed": decisions,
            "then, the other tables": batch.row["committed_at"] - (batch.decided_at or 0),
        }
        if self.progress:
            durations, state = self.progress["durationMs"], self.progress["stateOperators"][0]
            by_stage["of that the state's commit"] = state["commitTimeMs"]
            for stage in ("latestOffset", "queryPlanning", "walCommit", "commitOffsets", "triggerExecution"):
                by_stage[f"Spark: {stage}"] = durations.get(stage, 0)
        return {stage: round(value) for stage, value in by_stage.items()}


def _events(
    settings: Settings, name: str, count: int, query: StreamingQuery, written: list[WrittenBatch]
) -> list[Measured]:
    """Events at irregular times, and what became of each."""
    producer = Producer(settings.kafka_connection().librdkafka({"linger.ms": 0}))
    fleet = BenchmarkFleet(count, 1, 0.0, name)
    _send_layouts(settings, fleet)
    sent_at = datetime.now(timezone.utc)
    # The first batch after that may have been planned before it.
    _until(lambda: sum(row["batch_at"] > sent_at for row in batches_of(settings)) >= 2, query)
    sent, progress = {}, {}
    for number, topic in enumerate(fleet.names):
        now = sent[topic] = time.time_ns() // 1_000_000
        event = ConsumerEvent(
            v=1, topic=topic, subscription="s", type="STREAM", event="registered", consumer="c", consumers=2, at=now
        )
        producer.produce(CONSUMER_EVENTS.name, event.to_json().encode(), topic.encode())
        producer.flush(5)
        time.sleep(EVENT_SECONDS * (0.5 + number * 0.618 % 1))
        last = query.lastProgress
        progress[last["batchId"]] = last

    def decided() -> dict[str, int]:
        table = open_table(settings.lake_path, DECISIONS)
        rows = [] if table is None else table.to_pyarrow_table(columns=["subject", "batch_id"]).to_pylist()
        return {row["subject"]: row["batch_id"] for row in rows}

    _until(lambda: sent.keys() <= decided().keys(), query)
    of_batch = decided()
    _until(lambda: set(of_batch.values()) <= {batch.row["batch_id"] for batch in written}, query)
    batches = {batch.row["batch_id"]: batch for batch in written}
    return [
        Measured(sent_instant, batches[of_batch[topic]], progress.get(of_batch[topic]))
        for topic, sent_instant in sent.items()
    ]


def _send_layouts(settings: Settings, fleet: BenchmarkFleet) -> None:
    sender = MessageSender(settings.kafka.bootstrap)
    sender.layouts(fleet)
    sender.flush()


def _idle_cores(jvm: Any, seconds: float) -> float | None:
    """Return the cores used by driver, JVM and Python workers without data; None if /proc is unreadable."""
    try:
        before = cpu_seconds(jvm.pid)
        threading.Event().wait(seconds)
        return round((cpu_seconds(jvm.pid) - before) / seconds, 3)
    except OSError:
        return None


def _until(condition: Any, query: StreamingQuery, deadline_s: float = 180.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if query.exception() is not None or time.monotonic() > end:
            raise SystemExit(str(query.exception() or "the job did not get there in time"))
        time.sleep(0.2)


if __name__ == "__main__":
    main()
