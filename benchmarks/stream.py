"""How fast the job takes samples in, from a real Kafka broker to committed Delta tables, against two floors.

Run as `python -m benchmarks.stream [--quick] [--only NAME]`. Each case is a process with a broker, a lake and a Spark
of its own. Everything is in Kafka before the job starts, so that producing is not what is measured. The floors are
batch reads of the same records by the same Spark settings: Kafka read and shuffle of the raw rows by bucket, and the
same with the one validator parsing them in Python, without state; measured in turns, medians are shown. `sustained` is
a million segments for as long as its backlog lasts (five minutes at the goal of 400,000 samples a second); `ticks`
evaluates them until every topic's hold is on record, and some more times; the other cases show how cost grows. Prints a
table and writes benchmarks/stream.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.fleet import Fleet, Sender
from benchmarks.processes import folder_bytes, resident_mb
from lab.broker import EmbeddedBroker, create_topics
from lab.setup import ensure_jars
from lake.tables import open_table
from schemas.ids import EVERY_TOPIC
from schemas.kafka import CONTROL_EVENTS, SEGMENT_STATS
from schemas.messages import SegmentStats, TickEvent, parse_message
from schemas.settings import Settings, load_settings
from schemas.tables import BATCHES
from streaming.job import start_query
from streaming.session import start_session
from streaming.sink import LakeSink
from streaming.sources import KAFKA_OPTIONS, bucket_of

FLOOR_RUNS = 3
FLOOR_SAMPLES = 6_000_000
"""Maximum of samples that a floor reads."""


@dataclass(frozen=True)
class Case:
    """A fleet and how much of it is taken in."""

    topics: int
    segments: int
    """Of each topic."""
    significant: float
    """Share of segments that move by more than the band in each round."""
    rounds: int
    ticks: int = 0
    """Ticks over every topic at the end, one after the other."""

    @property
    def samples(self) -> int:
        return self.topics * self.segments * self.rounds

    @property
    def most(self) -> int:
        """Messages of a batch: a million samples, or 100,000 messages; fewer when that leaves too few batches."""
        return max(1, min(100_000, 1_000_000 // self.segments, self.topics * self.rounds // 20))


CASES = {
    "sustained": Case(100_000, 10, 0.1, 120),
    "ticks": Case(100_000, 10, 0.1, 2, ticks=40),
    "10k segments": Case(1_000, 10, 0.1, 800),
    "100k segments": Case(10_000, 10, 0.1, 100),
    "1 a topic": Case(100_000, 1, 0.1, 40),
    "64 a topic": Case(1_563, 64, 0.1, 100),
    "none significant": Case(10_000, 10, 0.0, 100),
    "all significant": Case(10_000, 10, 1.0, 60),
}
QUICK = {"10k segments": Case(1_000, 10, 0.1, 60, ticks=6), "all significant": Case(1_000, 10, 1.0, 60)}


def main(quick: bool, only: str | None) -> None:
    """Measures, prints, writes."""
    report: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
        "cases": {},
    }
    print(report["machine"])
    for name, case in (QUICK if quick else CASES).items():
        if only in (None, name):
            report["cases"][name] = _in_a_process_of_its_own(case)
            _show(name, report["cases"][name])
    if not quick and only is None:
        (Path(__file__).parent / "stream.json").write_text(json.dumps(report, indent=2) + "\n")


def _in_a_process_of_its_own(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "benchmarks.stream", "--case", json.dumps(asdict(case)), work]
        with open(f"{work}/log", "w") as log:
            code = subprocess.run(command, stdout=None, stderr=log, check=False).returncode
        if code:
            raise SystemExit(Path(f"{work}/log").read_text()[-4000:])
        found: dict[str, Any] = json.loads(Path(f"{work}/report.json").read_text())
        return {**asdict(case), **found}


def run_case(case: Case, work: Path) -> None:
    """One case in the folder `work`; leaves `report.json` there."""
    with on_a_broker(work, 16, case.most) as settings:
        _produce(settings.kafka.bootstrap, case)
        (work / "report.json").write_text(json.dumps(_measure(settings, case)))


@contextmanager
def on_a_broker(work: Path, buckets: int, most: int) -> Iterator[Settings]:
    """A broker with the three topics in the folder `work`, and the job's settings for it."""
    settings = bench_settings(work, buckets, most)
    broker = EmbeddedBroker(work / "kafka", ensure_jars(settings, print).kafka, heap="512m")
    broker.start()
    try:
        create_topics(broker.bootstrap)
        kafka = settings.kafka.model_copy(update={"bootstrap": broker.bootstrap})
        yield settings.model_copy(update={"kafka": kafka})
    finally:
        broker.stop()


def bench_settings(work: Path, buckets: int, most: int) -> Settings:
    """The job's settings for a benchmark in the folder `work`: no ticks but those that the benchmark sends."""
    file = work / "bench.toml"
    file.write_text(
        f'[lake]\npath = "{work}/lake"\n[stream]\ncheckpoint = "{work}/checkpoint"\nbuckets = {buckets}\n'
        f"tick_seconds = 86400\nmax_stats_per_batch = {most}\n"
        f'max_events_per_batch = 50000\n[local]\nfolder = "{work}"\n'
    )
    return load_settings([file], environment={})


def _produce(bootstrap: str, case: Case) -> None:
    sender, fleet = Sender(bootstrap), Fleet(case.topics, case.segments, case.significant)
    sender.layouts(fleet)
    now = time.time_ns() // 1_000_000
    for number in range(case.rounds):
        print(f"\rproducing round {number + 1} of {case.rounds} …", end="", flush=True)
        sender.round(fleet, now - (case.rounds - number) * 1_000)
    sender.flush()
    print("\r" + " " * 60 + "\r", end="", flush=True)


def _measure(settings: Settings, case: Case) -> dict[str, Any]:
    spark = start_session(settings, {"spark.driver.memory": "3g"})
    try:
        # Partitions are not of quite the same length.
        messages = min(int(case.topics * case.rounds * 0.9), FLOOR_SAMPLES // case.segments)
        floors: dict[str, list[float]] = {"read and shuffle": [], "and parse in Python": []}
        for _ in range(FLOOR_RUNS + 1):
            floors["read and shuffle"].append(_timed(lambda: _floor(spark, settings, messages, parse=False)))
            floors["and parse in Python"].append(_timed(lambda: _floor(spark, settings, messages, parse=True)))
        batches = _run_job(spark, settings, case)
        checkpoint = folder_bytes(Path(settings.stream.checkpoint))
        jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        resident = resident_mb(jvm)
        ticks = _ticks(spark, settings, case.ticks)
    finally:
        spark.stop()
    read = messages * case.segments
    return {
        "floors": {name: round(read / statistics.median(seconds[1:])) for name, seconds in floors.items()},
        "job": _throughput(batches),
        "checkpoint_mb": round(checkpoint / 1e6, 1),
        "resident_mb": resident,
        "ticks": {"first": ticks[0], "steady": statistics.median(ticks[-3:]), "seconds": ticks} if ticks else None,
    }


def _floor(spark: SparkSession, settings: Settings, messages: int, parse: bool) -> None:
    """Reads the first `messages` records, equally many of each partition."""
    partitions = SEGMENT_STATS.partitions
    ends = {SEGMENT_STATS.name: {str(number): messages // partitions for number in range(partitions)}}
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", settings.kafka.bootstrap)
    reader = reader.options(**KAFKA_OPTIONS).option("subscribe", SEGMENT_STATS.name)
    rows = reader.option("endingOffsets", json.dumps(ends)).load()
    rows = rows.select(bucket_of(rows["key"], settings.stream.buckets).alias("bucket"), "key", "value")
    rows = rows.repartition(2, "bucket")
    if parse:
        rows.mapInArrow(_parse, "messages bigint").write.format("noop").mode("overwrite").save()
    else:
        rows.write.format("noop").mode("overwrite").save()


def _parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        accepted = sum(
            isinstance(parse_message("segment-stats", key, value), SegmentStats)
            for key, value in zip(keys, values, strict=True)
        )
        yield pa.RecordBatch.from_pydict({"messages": [accepted]}, schema=pa.schema([("messages", pa.int64())]))


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _run_job(spark: SparkSession, settings: Settings, case: Case) -> list[dict[str, Any]]:
    query = start_query(spark, settings, LakeSink(settings.lake_path, "delta-rs", lambda *_: None))
    try:
        while (taken := sum(row["samples"] for row in batches_of(settings))) < case.samples:
            if query.exception() is not None:
                raise SystemExit(str(query.exception()))
            print(f"\r{taken:,} of {case.samples:,} samples …", end="", flush=True)
            threading.Event().wait(0.5)
        print("\r" + " " * 60 + "\r", end="", flush=True)
        return batches_of(settings)
    finally:
        query.stop()


def _ticks(spark: SparkSession, settings: Settings, count: int) -> list[float]:
    """Batch seconds of ticks over every topic, one after the other: the first ones put the fleet's holds on record."""
    if not count:
        return []
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap})
    query = start_query(spark, settings, LakeSink(settings.lake_path, "delta-rs", lambda *_: None))
    known = len(batches_of(settings))
    try:
        for number in range(count):
            tick = TickEvent(v=1, type="tick", at=time.time_ns() // 1_000_000)
            producer.produce(CONTROL_EVENTS.name, tick.to_json().encode(), EVERY_TOPIC.encode())
            producer.flush(10)
            while len(batches_of(settings)) <= known + number:
                threading.Event().wait(0.2)
    finally:
        query.stop()
    return [round(_seconds(row["batch_at"], row["committed_at"]), 3) for row in batches_of(settings)[known:]]


def batches_of(settings: Settings) -> list[dict[str, Any]]:
    """The rows of `batches`, in order."""
    table = open_table(settings.lake_path, BATCHES)
    rows = [] if table is None else table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["batch_id"])


def _throughput(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """From the end of the batch in which the last topic came to the last commit: layouts, workers and caches are there.

    `samples_per_second` counts all of that time, also what lies between batches; `by_tenth` is the same for each tenth
    of the batches, so that drift shows.
    """
    with_samples = [row for row in batches if row["samples"]]
    first = max((place for place, row in enumerate(with_samples) if row["events"]), default=0)
    warm = with_samples[min(first + 2, len(with_samples) // 2) :]
    seconds = _seconds(warm[0]["committed_at"], warm[-1]["committed_at"])
    parts = [warm[start : start + len(warm) // 10 + 1] for start in range(0, len(warm) - 1, max(1, len(warm) // 10))]
    return {
        "samples_per_second": round(_samples(warm[1:]) / seconds),
        "seconds": round(seconds, 1),
        "batches": len(warm),
        "batch_seconds": statistics.median(_seconds(row["batch_at"], row["committed_at"]) for row in warm),
        "by_tenth": [
            round(_samples(part[1:]) / _seconds(part[0]["committed_at"], part[-1]["committed_at"]))
            for part in parts
            if len(part) > 1
        ],
        "accepted": sum(row["samples_accepted"] for row in warm) / _samples(warm),
        "operator_us_per_sample": round(1000 * sum(row["operator_ms"] for row in warm) / _samples(warm), 3),
        "first_batches_seconds": [round(_seconds(row["batch_at"], row["committed_at"]), 1) for row in batches[:4]],
    }


def _samples(rows: list[dict[str, Any]]) -> int:
    return sum(row["samples"] for row in rows)


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


def _show(name: str, found: dict[str, Any]) -> None:
    floors, job = found["floors"], found["job"]
    print(
        f"\n{name}: {found['topics']:,} topics of {found['segments']}, {found['significant']:.0%} significant, "
        f"{job['accepted']:.0%} accepted"
    )
    lines = (*floors.items(), (f"the job, over {job['seconds']:.0f} s", job["samples_per_second"]))
    for line, rate in lines:
        print(f"  {line:32}{rate:12,.0f} samples/s {rate / floors['read and shuffle']:7.2f} of the first floor")
    print(f"  operator {job['operator_us_per_sample']} us a sample; a batch {job['batch_seconds']:.2f} s")
    print(f"  the first batches, with all layouts: {job['first_batches_seconds']} s")
    print(f"  checkpoint {found['checkpoint_mb']:,} MB; resident MB {found['resident_mb']}")
    print(f"  by tenth of the run: {', '.join(format(rate, ',') for rate in job['by_tenth'])}")
    if found["ticks"]:
        print(
            f"  a tick over every topic: first {found['ticks']['first']:.2f} s, steady {found['ticks']['steady']:.2f} s"
        )


if __name__ == "__main__":
    if "--case" in sys.argv:
        run_case(Case(**json.loads(sys.argv[-2])), Path(sys.argv[-1]))
    else:
        main("--quick" in sys.argv, sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else None)
