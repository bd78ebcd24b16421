"""The job on real parts: a real broker, real Spark, real Delta; killed around its commits and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from decisions.layout import SegmentLayout
from lab.broker import EmbeddedBroker, create_topics
from schemas.delta import open_table
from schemas.kafka import KAFKA_TOPICS
from schemas.settings import Settings, load_settings
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from tests.streaming.records import consumers, layout, record, stats, tick
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]
TOPICS = [f"topic://acme/shop/orders-{number}" for number in range(4)]

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(400)]


@pytest.fixture
def own_broker(tmp_path, jars):
    """A broker of the test's own: the topics' names are fixed."""
    broker = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    broker.start()
    try:
        create_topics(broker.bootstrap)
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def job_settings(tmp_path, own_broker) -> Path:
    """A settings file for a job on that broker, with a lake and a checkpoint of its own."""
    file = tmp_path / "job.toml"
    file.write_text(
        f'[kafka]\nbootstrap = "{own_broker.bootstrap}"\n[lake]\npath = "{tmp_path}/lake"\n'
        f'[stream]\ncheckpoint = "{tmp_path}/checkpoint"\nbuckets = 4\ntick_seconds = 3600\n'
    )
    return file


class Feed:
    """Produces records to the real broker, each to the topic that its source names."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.max.bytes": 20_000_000,
            }
        )

    def send(self, *records) -> None:
        for one in records:
            self._producer.produce(one.source, value=one.value, key=one.key)
        assert self._producer.flush(20) == 0

    def end_offsets(self) -> int:
        """Records in all three topics."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "count"})
        try:
            return sum(
                reader.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=10)[1]
                for topic in KAFKA_TOPICS
                for partition in range(topic.partitions)
            )
        finally:
            reader.close()


def rows(settings: Settings, table):
    delta = open_table(settings.lake_path, table)
    return [] if delta is None else delta.to_pyarrow_table().to_pylist()


def read(settings: Settings) -> int:
    """Messages that the job has accounted for."""
    delta = open_table(settings.lake_path, BATCHES)
    return 0 if delta is None else pc.sum(delta.to_pyarrow_table(columns=["messages"])["messages"]).as_py() or 0


class Job:
    """The job in a process group of its own."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=HOME, stdout=file, stderr=file, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(HOME)},
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def stop(self) -> int:
        """SIGTERM to the driver alone, as a supervisor would; the exit code."""
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path, job_settings):
    """Starts jobs on `job_settings`; whatever is left is killed."""
    jobs: list[Job] = []

    def started(*crash: str) -> Job:
        if crash:
            arguments = ["tests.streaming.crashing_job", str(job_settings), *crash]
        else:
            arguments = ["anabranch.cli", "--config", str(job_settings), "stream"]
        jobs.append(Job(arguments, tmp_path / "job.log"))
        return jobs[-1]

    yield started
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


def allow_large_values(bootstrap: str) -> None:
    """Somebody else's cluster may let through what our own topic definition refuses."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("max.message.bytes", "20000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "segment-stats", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def load_round(number: int) -> list:
    """Samples of all topics; each round moves every rate by more than the band."""
    at = now_ms()
    return [stats({0: 1_000.0 * 2**number, 1: 1.0}, at, topic) for topic in TOPICS]


def check_nothing_lost_and_nothing_twice(settings: Settings, feed: Feed) -> None:
    batches = rows(settings, BATCHES)
    assert sum(row["messages"] for row in batches) == feed.end_offsets()
    for row in batches:
        assert row["messages"] == row["messages_accepted"] + row["messages_suppressed"] + row["dead_letters"]
    assert sum(row["samples_accepted"] for row in batches) == len(rows(settings, SEGMENT_LOAD))
    for table, column in (
        (EVENTS, "events"),
        (DEAD_LETTERS, "dead_letters"),
        (DECISIONS, "decisions"),
        (HOLDS, "holds"),
    ):
        assert sum(row[column] for row in batches) == len(rows(settings, table)), table.name
    for table in (EVENTS, DEAD_LETTERS):
        coordinates = [
            (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) for row in rows(settings, table)
        ]
        assert len(set(coordinates)) == len(coordinates)
    for table in (DECISIONS, HOLDS):
        by_subject: dict[str, list[int]] = {}
        for row in rows(settings, table):
            by_subject.setdefault(row["subject"], []).append(row["seq"])
        for subject, numbers in by_subject.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), (table.name, subject)


def test_events_samples_and_garbage_become_decisions_loads_and_dead_letters(start, job_settings, own_broker):
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
    wait_until(lambda: read(settings) == feed.end_offsets(), 90, 0.2)
    feed.send(tick(now_ms()))
    wait_until(lambda: read(settings) == feed.end_offsets(), 60, 0.2)
    decided = {row["subject"]: row for row in rows(settings, DECISIONS)}
    assert set(decided) == set(TOPICS)
    assert decided[TOPICS[0]]["reason"] == "consumer-count"
    assert {decided[topic]["reason"] for topic in TOPICS[1:]} == {"msgRateIn"}
    reasons = sorted(row["reason"] for row in rows(settings, DEAD_LETTERS))
    assert reasons == ["no-value", "not-json", "too-large", "unknown-type", "unknown-version", "unknown-version"]
    assert {row["gate"] for row in rows(settings, HOLDS)} == {"in-flight"}
    check_nothing_lost_and_nothing_twice(settings, feed)
    assert job.stop() == 0


@pytest.mark.parametrize("writer", ["delta-rs", "delta-spark"])
def test_killed_around_its_commits_it_loses_nothing_and_counts_nothing_twice(start, job_settings, own_broker, writer):
    with open(job_settings, "a") as file:
        file.write(f'bulk_writer = "{writer}"\n')
    settings, feed = load_settings([job_settings]), Feed(own_broker.bootstrap)
    feed.send(*[layout(SegmentLayout.create(2, now_ms()), topic=topic) for topic in TOPICS], *load_round(0))
    # Before the batch's row is after the bulk commit: that replay finds segment_load written.
    crashes = [("decisions", "after", "0"), ("batches", "before", "1"), ("segment_load", "before", "2")]
    stop, number = threading.Event(), [1]

    def keep_feeding() -> None:
        while not stop.wait(0.5):
            feed.send(*load_round(number[0] % 9), consumers(number[0] % 7, topic=TOPICS[number[0] % 4]), tick(now_ms()))
            number[0] += 1

    feeder = threading.Thread(target=keep_feeding)
    feeder.start()
    try:
        for crash in crashes:
            assert start(*crash).process.wait(120) == -signal.SIGKILL
    finally:
        stop.set()
        feeder.join()
    job = start()
    wait_until(lambda: read(settings) == feed.end_offsets(), 90, 0.2)
    check_nothing_lost_and_nothing_twice(settings, feed)
    assert rows(settings, DECISIONS)
    assert job.stop() == 0


def test_a_second_job_on_the_same_checkpoint_refuses_and_says_who_holds_it(start, job_settings, tmp_path):
    first = start()
    lock = tmp_path / "checkpoint.lock"
    wait_until(lambda: lock.exists() and str(first.process.pid) in lock.read_text(), 30)
    second = start()
    assert second.process.wait(60) == 1
    assert f"in use by process {first.process.pid}" in (tmp_path / "job.log").read_text()
    first.kill()
