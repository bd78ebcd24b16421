"""The job on real parts: a real broker, real Spark, real Delta: what it takes in, and what it refuses to go on from."""

from __future__ import annotations

import os
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql import SparkSession

import streaming.job.backpressure
import streaming.job.job
from decisions.topic.layout import SegmentLayout
from lake.files import table_path
from schemas.settings.root import Settings, load_settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.job.job import PersonNeeded
from streaming.operator.processor import BucketProcessor
from tests.engine.records import consumers, layout, record, stats, tick
from tests.harness.garbage import KINDS, make_garbage
from tests.streaming.jobs import (
    BATCH_SECONDS,
    TOPICS,
    Feed,
    check_nothing_lost_and_nothing_twice,
    load_round,
    now_ms,
    read,
    rows,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]


def allow_large_values(bootstrap: str) -> None:
    """Another cluster may accept what our own topic definition refuses."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("max.message.bytes", "20000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "segment-stats", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def recording_processor(file: Path) -> type[BucketProcessor]:
    """The operator, which notes the partition and the process of each task, and whether it has loaded pandas."""

    # Local, so that it travels to the workers by value: they do not know the tests.
    class RecordingProcessor(BucketProcessor):
        def close(self) -> None:
            super().close()
            if (task := TaskContext.get()) is not None:
                with open(file, "a") as notes:
                    notes.write(f"{task.partitionId()} {os.getpid()} {'pandas' in sys.modules}\n")

    return RecordingProcessor


def compilations(spark: SparkSession) -> int:
    """How often the JVM has compiled code that Spark generated, for plans and for rows."""
    metrics = spark.sparkContext._gateway.jvm.org.apache.spark.metrics.source.CodegenMetrics
    return metrics.METRIC_COMPILATION_TIME().getCount()


def tasks_of_stages(spark: SparkSession) -> list[int]:
    """Of each stage of the query that runs, as far as Spark remembers."""
    (query,), tracker = spark.streams.active, spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    return [tracker.getStageInfo(stage).numTasks for job in jobs for stage in job.stageIds]


def test_job_turns_input_into_decisions_and_letters(spark, start, job_settings, own_broker, tmp_path, monkeypatch):
    """Events, samples and garbage become decisions, loads and dead letters."""
    tasks = tmp_path / "tasks"
    monkeypatch.setattr(streaming.job.job, "BucketProcessor", recording_processor(tasks))
    monkeypatch.setattr(streaming.job.backpressure, "FIRST", 40)
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    layouts = [layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS]
    garbage = [
        record("segment-stats", TOPICS[0], b"\x00\xff"),
        record("segment-stats", None, b"{}"),
        record("segment-stats", TOPICS[0], None),
        record("control-events", "*", b'{"v":1,"type":"rebucket","at":1}'),
        record("consumer-events", TOPICS[1], b'{"v":2}'),
        record("segment-stats", TOPICS[0], b" " * 10_000_000),
    ]
    allow_large_values(own_broker.bootstrap)
    job = start()
    feed.send(*layouts, *garbage, *load_round(6), consumers(3, topic=TOPICS[0]), tick(now_ms()))
    wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)
    feed.send(tick(now_ms()))
    wait_until(lambda: read(settings) == feed.end_offsets(), 120, 0.2)
    compiled = compilations(spark)
    feed.send(tick(now_ms()))
    wait_until(lambda: read(settings) == feed.end_offsets(), 120, 0.2)
    assert compilations(spark) == compiled, "a batch like one before it has the same code"
    assert max(tasks_of_stages(spark)) <= 4, "at most two for each of the two sources, whatever partitions Kafka has"
    decided = {row["subject"]: row for row in rows(settings, DECISIONS)}
    assert set(decided) == set(TOPICS)
    assert decided[TOPICS[0]]["reason"] == "consumer-count"
    assert {decided[topic]["reason"] for topic in TOPICS[1:]} == {"msgRateIn"}
    reasons = sorted(row["reason"] for row in rows(settings, DEAD_LETTERS))
    assert reasons == ["no-value", "not-json", "too-large", "unknown-type", "unknown-version", "unknown-version"]
    assert {row["gate"] for row in rows(settings, HOLDS)} == {"in-flight"}
    takes_what_is_good_out_of_a_flood_of_garbage(settings, feed)
    gets_through_what_is_too_much_for_one_batch_of_output(settings, feed)
    opens_no_more_connections_with_every_batch(spark, settings, feed)
    check_nothing_lost_and_nothing_twice(settings, feed)
    job.stop()
    ran = Counter(tasks.read_text().splitlines())
    assert sorted(task.split()[0] for task in ran) == ["0", "1"], "each partition has one process in all batches"
    assert {task.split()[2] for task in ran} == {"False"}, "nothing loads pandas"
    assert min(ran.values()) > 2
    sizes = [
        row["messages"] - row["events"] for row in sorted(rows(settings, BATCHES), key=lambda row: row["batch_id"])
    ]
    assert max(sizes) > 100, "a query begins with 40 messages a batch, and more are allowed while it runs"


def connections(spark: SparkSession) -> int:
    """Sockets that Spark's process has open."""
    files = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/fd").iterdir()
    return sum(file.is_symlink() and os.readlink(file).startswith("socket:") for file in files)


def opens_no_more_connections_with_every_batch(spark: SparkSession, settings: Settings, feed: Feed) -> None:
    """Every task of the state stage has one to its worker, and is over with its batch."""
    before = connections(spark)
    for _ in range(BATCHES_WATCHED):
        feed.send(tick(now_ms()))
        wait_until(lambda: read(settings) == feed.end_offsets(), BATCH_SECONDS, 0.05)
    assert connections(spark) < before + BATCHES_WATCHED


BATCHES_WATCHED = 20
"""So many batches have twice as many tasks."""


def takes_what_is_good_out_of_a_flood_of_garbage(settings: Settings, feed: Feed) -> None:
    """Thousands of bad messages of every kind as fast as they go, values of more than 1 MiB too, good ones between."""
    random, began = Random(0), now_ms()
    before = Counter(row["reason"] for row in rows(settings, DEAD_LETTERS))
    expected: Counter[str] = Counter()
    flood = []
    for number in range(60):
        for kind in KINDS:
            bad = make_garbage("topic://acme/shop/garbage", began, random, kind)
            flood.append(record(bad.source, None if bad.key is None else bad.key.decode(), bad.value))
            expected[bad.expected.value if bad.expected else "none"] += 1
        flood += [stats({0: 1_000.0 * (1 + number % 2)}, began + number, topic) for topic in TOPICS]
    del expected["none"]
    feed.send(*flood)
    wait_until(lambda: read(settings) == feed.end_offsets(), 120, 0.2)
    assert Counter(row["reason"] for row in rows(settings, DEAD_LETTERS)) - before == expected
    taken = Counter(
        row["topic"] for row in rows(settings, SEGMENT_LOAD) if round(row["sampled_at"].timestamp() * 1000) >= began
    )
    assert {topic: taken[topic] for topic in TOPICS} == dict.fromkeys(TOPICS, 60)


def gets_through_what_is_too_much_for_one_batch_of_output(settings: Settings, feed: Feed) -> None:
    """40 MB of output, of garbage and of good messages: the workers write it, and all of it is on record."""
    random = Random(1)
    noise = [
        record("segment-stats", f"noise-{number % 50}", b"\xff" + random.randbytes(8_000)) for number in range(3000)
    ]
    noise.append(record("segment-stats", "noise", b"\xff" * 5_000_000))
    padded = layout(SegmentLayout.create(2, now_ms()), topic="topic://acme/shop/padded")
    value = padded.value[:-1] + b',"padding":"' + b"x" * 1_000_000 + b'"}'
    large = [record(padded.source, padded.key.decode(), value) for _ in range(20)]
    feed.send(*noise, *large)
    wait_until(lambda: read(settings) == feed.end_offsets(), 120, 0.2)
    letters = {row["raw_sha256"]: row for row in rows(settings, DEAD_LETTERS)}
    for one in noise:
        letter = letters[sha256(one.value).hexdigest()]
        assert (letter["raw"], letter["raw_size"]) == (one.value[:4096], len(one.value))
    taken = [row["body"] for row in rows(settings, EVENTS) if row["subject"] == "topic://acme/shop/padded"]
    assert taken == [value.decode()] * len(large)
    folder = Path(table_path(settings.lake_path, DEAD_LETTERS))
    added = {str(folder / path) for path in DeltaTable(folder).get_add_actions()["path"].to_pylist()}
    assert added == {str(file) for file in folder.glob("day=*/*.parquet")}


def test_checkpoint_refused_while_held_or_expired(start, start_process, job_settings, own_broker, tmp_path):
    """Expired: Kafka's retention has passed it."""
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    feed.send(*load_round(0))
    first = start()
    name = tmp_path / "checkpoint.holder"
    wait_until(lambda: name.exists() and str(os.getpid()) in name.read_text(), 30)
    second = start_process()
    assert second.process.wait(60) == 1
    assert f"in use by process {os.getpid()}" in second.log.read_text()
    wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)
    first.stop()
    before = read(settings)
    feed.send(*load_round(1))
    drop_all(own_broker.bootstrap, "segment-stats")
    feed.send(*load_round(2))
    failure = start().end()
    assert isinstance(failure, PersonNeeded)
    assert "Kafka no longer has records that this checkpoint has not read" in str(failure)
    assert "anabranch lake state rebuild" in str(failure)
    assert read(settings) == before


def drop_all(bootstrap: str, topic: str) -> None:
    """What Kafka's retention does, at once."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(topic, 10).topics[topic].partitions
    ends = [TopicPartition(topic, partition, OFFSET_END) for partition in partitions]
    for future in admin.delete_records(ends).values():
        future.result(10)
