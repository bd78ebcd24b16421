"""How long after a consumer has registered its decision is committed to Delta: alone, and under a stream of samples.

Run as `python -m benchmarks.latency [--quick]`. Each event is of a topic of its own, of one segment and two consumers:
each leads to one split. Measured from the event's own time to the instant at which the last table of its batch
was committed. Ticks over every topic, other consumers' events and the controller's snapshots go on all the time. The
stages are Spark's own durations of the same batches. Prints a table and writes benchmarks/latency.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql.streaming import StreamingQuery

from benchmarks.feeds import feeding
from benchmarks.fleet import Fleet, Sender
from benchmarks.jobs import batches_of, on_a_broker
from benchmarks.processes import cpu_seconds
from lake.tables import open_table
from schemas.kafka import CONSUMER_EVENTS
from schemas.messages import ConsumerEvent
from schemas.settings import Settings
from schemas.tables import DECISIONS
from streaming.job import start_query
from streaming.session import start_session
from streaming.sink import LakeSink, WrittenBatch
from streaming.ticks import TickWriter

EVENTS = 500
"""Of each scenario: so many that five are beyond the 99th percentile."""
QUICK_EVENTS = 30
EVENT_SECONDS = 0.5
"""Between two events, on average."""
LOADED_TOPICS = 10_000
SEGMENTS = 10
SAMPLES_PER_SECOND = LOADED_TOPICS * SEGMENTS
TICK_SECONDS = 60.0


def main(quick: bool) -> None:
    """Measures, prints, writes."""
    events = QUICK_EVENTS if quick else EVENTS
    with tempfile.TemporaryDirectory() as work, on_a_broker(Path(work), 16, 50_000) as settings:
        report = {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
            **_measure(settings, events),
        }
    _show(report)
    if quick:
        return
    (Path(__file__).parent / "latency.json").write_text(json.dumps(report, indent=2) + "\n")


def _measure(settings: Settings, events: int) -> dict[str, Any]:
    spark = start_session(settings)
    written: list[WrittenBatch] = []
    bootstrap = settings.kafka.bootstrap
    fleet: dict[str, Any] = {"topics": LOADED_TOPICS, "segments": SEGMENTS, "prefix": "loaded"}
    ticks = TickWriter(settings.kafka_connection(), TICK_SECONDS)
    try:
        query = start_query(spark, settings, LakeSink(settings.lake_path, ticks.ask, written.append))
        _send_layouts(settings, Fleet(LOADED_TOPICS, SEGMENTS, 0.1, "loaded"))
        _until(lambda: sum(row["events"] for row in batches_of(settings)) >= LOADED_TOPICS, query)
        ticks.start()
        with feeding("announcements", bootstrap, **fleet):
            _events(settings, "warm-up", 20, query)
            alone = _scenario(settings, query, written, "alone", events)
            with feeding("samples", bootstrap, seconds=1, **fleet):
                _events(settings, "warm-up-loaded", 20, query)
                loaded = _scenario(settings, query, written, "loaded", events)
        idle = _idle_cores(spark.sparkContext._gateway.proc, 20.0)
        query.stop()
    finally:
        ticks.stop()
        spark.stop()
    return {"alone": alone, f"under {SAMPLES_PER_SECOND} samples/s": loaded, "idle cores": idle}


def _scenario(
    settings: Settings, query: StreamingQuery, written: list[WrittenBatch], name: str, events: int
) -> dict[str, Any]:
    first, began = query.lastProgress["batchId"] + 1, time.time()
    before = len(written)
    latencies = _events(settings, name, events, query)
    seconds = time.time() - began
    progress = [dict(one["durationMs"]) for one in query.recentProgress if one["batchId"] >= first]
    stages = {stage: statistics.median(one.get(stage, 0) for one in progress) for stage in progress[0]}
    batches = written[before:]
    return {
        "events": events,
        "p50_ms": _percentile(latencies, 0.50),
        "p99_ms": _percentile(latencies, 0.99),
        "most_ms": max(latencies),
        "spark_stages_ms": stages,
        "operator_ms": round(1000 * statistics.median(one.operator_seconds for one in batches)),
        "delta_commits_ms": round(1000 * statistics.median(sum(one.commit_seconds.values()) for one in batches)),
        "samples_per_second": round(sum(one.row["samples"] for one in batches) / seconds),
    }


def _events(settings: Settings, name: str, count: int, query: StreamingQuery) -> list[int]:
    """Milliseconds from each event to the commit of its batch; events come at irregular times."""
    producer = Producer(settings.kafka_connection().librdkafka({"linger.ms": 0}))
    fleet = Fleet(count, 1, 0.0, name)
    _send_layouts(settings, fleet)
    sent_at = datetime.now(timezone.utc)
    # The first batch after that may have been planned before it.
    _until(lambda: sum(row["batch_at"] > sent_at for row in batches_of(settings)) >= 2, query)
    sent = {}
    for number, topic in enumerate(fleet.names):
        now = sent[topic] = time.time_ns() // 1_000_000
        event = ConsumerEvent(
            v=1, topic=topic, subscription="s", type="STREAM", event="registered", consumer="c", consumers=2, at=now
        )
        producer.produce(CONSUMER_EVENTS.name, event.to_json().encode(), topic.encode())
        producer.flush(5)
        time.sleep(EVENT_SECONDS * (0.5 + number * 0.618 % 1))

    def decided() -> dict[str, int]:
        table = open_table(settings.lake_path, DECISIONS)
        rows = [] if table is None else table.to_pyarrow_table(columns=["subject", "batch_id"]).to_pylist()
        return {row["subject"]: row["batch_id"] for row in rows}

    _until(lambda: sent.keys() <= decided().keys(), query)
    committed = {row["batch_id"]: row["committed_at"].timestamp() * 1000 for row in batches_of(settings)}
    of_batch = decided()
    return [round(committed[of_batch[topic]] - at) for topic, at in sent.items()]


def _send_layouts(settings: Settings, fleet: Fleet) -> None:
    sender = Sender(settings.kafka.bootstrap)
    sender.layouts(fleet)
    sender.flush()


def _idle_cores(jvm: Any, seconds: float) -> float | None:
    """Cores that the driver, the JVM and its Python workers use without data; None where /proc does not tell."""
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


def _percentile(values: list[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _show(report: dict[str, Any]) -> None:
    print(report["machine"])
    for name, found in report.items():
        if isinstance(found, dict) and "p50_ms" in found:
            print(
                f"{name:28} p50 {found['p50_ms']:6} ms   p99 {found['p99_ms']:6} ms   most {found['most_ms']:6} ms"
                f"   {found['samples_per_second']:,} samples/s"
            )
            print(f"  stages: {found['spark_stages_ms']}")
            print(f"  operator {found['operator_ms']} ms, Delta commits {found['delta_commits_ms']} ms")
    print(f"idle: {report['idle cores']} cores")


if __name__ == "__main__":
    main("--quick" in sys.argv)
