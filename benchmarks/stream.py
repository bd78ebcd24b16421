"""How fast the job takes samples in, from a real Kafka broker to committed Delta tables, against two floors.

Run as `python -m benchmarks.stream [--quick]`. Everything is in Kafka before the job starts, so that producing is not
what is measured. The floors are batch reads of the same records by the same Spark settings: Kafka read and shuffle of
the raw rows by bucket, and the same with the one validator parsing them in Python, without state. Each is measured
several times, in turns; medians are shown. Prints a table and writes benchmarks/stream.json.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.processes import folder_bytes, resident_mb
from decisions.layout import SegmentLayout
from lab.broker import EmbeddedBroker, create_topics
from lab.setup import ensure_jars
from schemas.delta import open_table
from schemas.ids import EVERY_TOPIC
from schemas.kafka import CONTROL_EVENTS, SEGMENT_STATS
from schemas.messages import LayoutEvent, SegmentSample, SegmentStats, TickEvent, parse_message
from schemas.settings import Settings, load_settings
from schemas.tables import BATCHES
from streaming.job import engine_settings, start_query
from streaming.session import start_session
from streaming.sink import LakeSink
from streaming.sources import KAFKA_OPTIONS, bucket_of

SIGNIFICANT = 0.1
"""Share of segments that move by more than the band in each round."""
SEGMENTS = 10
FLOOR_RUNS = 3
TICKS = 14


def main(quick: bool) -> None:
    """Measures, prints, writes."""
    topics, rounds, most = (2_000, 10, 2_000) if quick else (100_000, 6, 50_000)
    with tempfile.TemporaryDirectory() as work:
        settings = bench_settings(Path(work), 64, most)
        jars = ensure_jars(settings, print)
        broker = EmbeddedBroker(Path(work) / "kafka", jars.kafka, heap="512m")
        broker.start()
        try:
            settings = settings.model_copy(
                update={"kafka": settings.kafka.model_copy(update={"bootstrap": broker.bootstrap})}
            )
            create_topics(broker.bootstrap)
            print(f"producing {topics:,} topics of {SEGMENTS} segments, {rounds} rounds …", flush=True)
            messages = _produce(broker.bootstrap, topics, rounds)
            report = {
                "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
                "topics": topics, "segments": topics * SEGMENTS, "significant": SIGNIFICANT,
                **_measure(settings, messages),
            }  # fmt: skip
        finally:
            broker.stop()
    _show(report)
    (Path(__file__).parent / "stream.json").write_text(json.dumps(report, indent=2) + "\n")


def bench_settings(work: Path, buckets: int, most: int) -> Settings:
    """The job's settings for a benchmark in the folder `work`: no ticks but those that the benchmark sends."""
    file = work / "bench.toml"
    file.write_text(
        f'[lake]\npath = "{work}/lake"\n[stream]\ncheckpoint = "{work}/checkpoint"\nbuckets = {buckets}\n'
        f"tick_seconds = 86400\nmax_stats_per_batch = {most}\n"
        f'max_events_per_batch = {most}\n[local]\nfolder = "{work}"\n'
    )
    return load_settings([file], environment={})


def _produce(bootstrap: str, topics: int, rounds: int) -> int:
    producer = Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4", "batch.size": 1_000_000,
        "queue.buffering.max.messages": 1_000_000,
    })  # fmt: skip
    now = time.time_ns() // 1_000_000
    names = [f"topic://acme/shop/orders-{number:06d}" for number in range(topics)]
    layout = SegmentLayout.create(SEGMENTS, now - 3_600_000).to_metadata()

    def send(topic: str, key: str, value: str) -> None:
        while True:
            try:
                producer.produce(topic, value.encode(), key.encode())
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)

    for name in names:
        event = LayoutEvent(v=1, type="layout", topic=name, cause="created", layout=layout, at=now)
        send(CONTROL_EVENTS.name, name, event.to_json())
    rng = random.Random(7)
    rates = [[rng.uniform(2_000, 8_000) for _ in range(SEGMENTS)] for _ in names]
    for number in range(rounds):
        for name, row in zip(names, rates, strict=True):
            for segment in range(SEGMENTS):
                if rng.random() < SIGNIFICANT:
                    row[segment] = 12_000 - row[segment]
            samples = [sample_of(segment, rate) for segment, rate in enumerate(row)]
            at = now - (rounds - number) * 1_000
            stats = SegmentStats(v=1, topic=name, reporter="broker-1", sampled_at=at, segments=samples)
            send(SEGMENT_STATS.name, name, stats.to_json())
    producer.flush(120)
    return topics * rounds


def sample_of(segment: int, rate: float) -> SegmentSample:
    """A sample whose four rates are in a usual ratio."""
    return SegmentSample(
        id=segment, msg_rate_in=rate, bytes_rate_in=rate * 1e3, msg_rate_out=rate * 2, bytes_rate_out=rate * 2e3
    )


def _measure(settings: Settings, messages: int) -> dict[str, Any]:
    spark = start_session(settings, {"spark.driver.memory": "3g"})
    try:
        floors: dict[str, list[float]] = {"read and shuffle": [], "and parse in Python": []}
        for _ in range(FLOOR_RUNS + 1):
            floors["read and shuffle"].append(_timed(lambda: _floor(spark, settings, parse=False)))
            floors["and parse in Python"].append(_timed(lambda: _floor(spark, settings, parse=True)))
        batches = _run_job(spark, settings, messages)
        checkpoint = folder_bytes(Path(settings.stream.checkpoint))
        ticks = _ticks(spark, settings)
        resident = resident_mb(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    finally:
        spark.stop()
    samples = messages * SEGMENTS
    return {
        "floors": {name: samples / statistics.median(seconds[1:]) for name, seconds in floors.items()},
        "job": _throughput(batches),
        "checkpoint_mb": round(checkpoint / 1e6, 1),
        "resident_mb": resident,
        "ticks": {"first": ticks[0], "steady": statistics.median(ticks[-3:]), "seconds": ticks},
    }


def _floor(spark: SparkSession, settings: Settings, parse: bool) -> None:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", settings.kafka.bootstrap)
    rows = reader.options(**KAFKA_OPTIONS).option("subscribe", SEGMENT_STATS.name).load()
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


def _run_job(spark: SparkSession, settings: Settings, messages: int) -> list[dict[str, Any]]:
    engine_settings(settings)
    query = start_query(spark, settings, LakeSink(settings.lake_path, "delta-rs", lambda *_: None))
    try:
        while sum(row["samples"] for row in batches_of(settings)) < messages * SEGMENTS:
            if query.exception() is not None:
                raise SystemExit(str(query.exception()))
            threading.Event().wait(0.5)
        return batches_of(settings)
    finally:
        query.stop()


def _ticks(spark: SparkSession, settings: Settings) -> list[float]:
    """Batch seconds of ticks over every topic, one after the other: the first ones put the fleet's holds on record."""
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap})
    query = start_query(spark, settings, LakeSink(settings.lake_path, "delta-rs", lambda *_: None))
    known = len(batches_of(settings))
    try:
        for number in range(TICKS):
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
    """Of the batches with samples, without the first two, which start the workers and accept every first sample."""
    warm = [row for row in batches if row["samples"]][2:]
    rates = [row["samples"] / _seconds(row["batch_at"], row["committed_at"]) for row in warm]
    return {
        "samples_per_second": statistics.median(rates) if rates else None,
        "batches": len(warm),
        "batch_seconds": [round(_seconds(row["batch_at"], row["committed_at"]), 3) for row in warm],
        "samples": sum(row["samples"] for row in warm),
        "accepted": sum(row["samples_accepted"] for row in warm),
        "operator_core_seconds": round(sum(row["operator_ms"] for row in warm) / 1000, 2),
    }


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


def _show(report: dict[str, Any]) -> None:
    floors, job = report["floors"], report["job"]
    print(f"\n{report['segments']:,} segments in {report['topics']:,} topics, {SIGNIFICANT:.0%} significant")
    print(report["machine"])
    for name, rate in (*floors.items(), ("the job, committed to Delta", job["samples_per_second"] or 0)):
        print(f"{name:32}{rate:12,.0f} samples/s {rate / floors['read and shuffle']:7.2f} of the first floor")
    print(f"checkpoint {report['checkpoint_mb']:,} MB, resident MB {report['resident_mb']}")
    for name in ("first", "steady"):
        print(f"{f'a tick over every topic, {name}':40}{report['ticks'][name]:8.2f} s of batch time")


if __name__ == "__main__":
    main("--quick" in sys.argv)
