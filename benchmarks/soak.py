"""The whole job for an hour at a steady load: does memory, the checkpoint or the time of a batch grow?

Run as `python -m benchmarks.soak [--minutes 60] [--topics 100000]`; not part of `make bench`. Every topic of ten
segments reports every 20 s, a tenth of the segments having moved by more than the band; ticks come every 60 s, consumer
events and the controller's snapshots all the time; the tables' upkeep runs as it is delivered. Prints a line a minute;
benchmarks/soak.json has them at the end, with the growth of the second half.
"""

import json
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.feeds import feeding
from benchmarks.fleet import BenchmarkFleet, MessageSender
from benchmarks.jobs import batches_of, on_a_broker
from benchmarks.processes import cpu_seconds, folder_bytes, resident_mb
from benchmarks.record import machine_now, write_report
from lake.upkeep import Upkeep
from schemas.settings.root import Settings
from streaming.job.job import start_query
from streaming.job.session import start_session
from streaming.job.ticks import TickWriter
from streaming.sink.sink import WRITTEN, LakeSink

SEGMENTS = 10
REPORT_SECONDS = 20
TICK_SECONDS = 60.0


@click.command()
@click.option("--minutes", default=60, show_default=True)
@click.option("--topics", default=100_000, show_default=True)
def main(minutes: int, topics: int) -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as work, on_a_broker(Path(work), 16, 100_000) as settings:
        by_minute = _measure(settings, topics, minutes)
    report = {
        "machine": machine_now(),
        "topics": topics,
        "segments": topics * SEGMENTS,
        "samples_per_second": topics * SEGMENTS // REPORT_SECONDS,
        "by_minute": by_minute,
        "second_half": _growth(by_minute[len(by_minute) // 2 :]),
    }
    print(json.dumps(report["second_half"], indent=2))
    write_report("soak", report)


def _measure(settings: Settings, topics: int, minutes: int) -> list[dict[str, Any]]:
    bootstrap = settings.kafka.bootstrap
    spark = start_session(settings, {"spark.driver.memory": "3g"})
    ticks = TickWriter(settings.kafka_connection(), TICK_SECONDS)
    try:
        sender = MessageSender(bootstrap)
        sender.layouts(BenchmarkFleet(topics, SEGMENTS, 0.1))
        sender.flush()
        query = start_query(spark, settings, LakeSink(settings.lake_path, ticks.ask))
        while sum(row["events"] for row in batches_of(settings)) < topics:
            threading.Event().wait(1)
        ticks.start()
        fleet = {"topics": topics, "segments": SEGMENTS}
        with (
            Upkeep(settings.lake_path, WRITTEN, settings.lake.compact_minutes),
            feeding("samples", bootstrap, seconds=REPORT_SECONDS, **fleet),
            feeding("announcements", bootstrap, **fleet),
        ):
            by_minute = _by_minute(spark, settings, query, minutes)
        query.stop()
        return by_minute
    finally:
        ticks.stop()
        spark.stop()


def _by_minute(spark: SparkSession, settings: Settings, query: StreamingQuery, minutes: int) -> list[dict[str, Any]]:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    by_minute: list[dict[str, Any]] = []
    seen, used = len(batches_of(settings)), cpu_seconds(jvm)
    for minute in range(1, minutes + 1):
        threading.Event().wait(60)
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        batches = batches_of(settings)
        now_used = cpu_seconds(jvm)
        by_minute.append(
            {
                "minute": minute,
                **_of(batches[seen:]),
                "cores": round((now_used - used) / 60, 2),
                "resident_mb": resident_mb(jvm),
                "checkpoint_mb": round(folder_bytes(Path(settings.stream.checkpoint)) / 1e6, 1),
                "lake_mb": round(folder_bytes(Path(settings.lake_path)) / 1e6, 1),
            }
        )
        print(by_minute[-1], flush=True)
        seen, used = len(batches), now_used
    return by_minute


def _of(batches: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [(row["committed_at"] - row["batch_at"]).total_seconds() for row in batches] or [0.0]
    return {
        "batches": len(batches),
        "samples": sum(row["samples"] for row in batches),
        "batch_seconds": round(statistics.median(seconds), 3),
        "longest": round(max(seconds), 3),
        "evaluations": sum(row["evaluations"] for row in batches),
    }


def _growth(minutes: list[dict[str, Any]]) -> dict[str, float]:
    """Slopes per hour of what should stay level."""
    if len(minutes) < 2:
        return {}
    elapsed = [minute["minute"] for minute in minutes]

    def per_hour(values: list[float]) -> float:
        return round(60 * statistics.linear_regression(elapsed, values).slope, 3)

    return {
        "batch_seconds_per_hour": per_hour([minute["batch_seconds"] for minute in minutes]),
        "checkpoint_mb_per_hour": per_hour([minute["checkpoint_mb"] for minute in minutes]),
        "lake_mb_per_hour": per_hour([minute["lake_mb"] for minute in minutes]),
        **{
            f"{part}_mb_per_hour": per_hour([minute["resident_mb"][part] for minute in minutes])
            for part in minutes[0]["resident_mb"]
        },
    }


if __name__ == "__main__":
    main()
