"""The job on a real broker and a real lake: on a session or as a process; fed, killed, stopped and checked."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from lake.tables import open_table
from schemas.kafka.topics import KAFKA_TOPICS
from schemas.settings.root import Settings
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.job.job import run_job
from streaming.job.session import read_spark_conf
from streaming.sink.sink import LakeSink
from tests.engine.records import consumers, stats, tick
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]
BATCH_SECONDS = 180
"""Longest wait for a batch of a job: on a busy machine Spark may give its Python up, and the query starts again."""
TOPICS = [f"topic://acme/shop/orders-{number}" for number in range(4)]


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
        # One for all questions: they are asked some times a second.
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "count"})

    def send(self, *records) -> None:
        """Returns when the broker has them all. What is too large is sent again: a topic's new limit takes a moment."""
        end = time.monotonic() + 20
        while records:
            refused: list = []
            for one in records:
                self._producer.produce(
                    one.source,
                    value=one.value,
                    key=one.key,
                    on_delivery=lambda error, _, one=one, refused=refused: error and refused.append((one, error)),
                )
            assert self._producer.flush(20) == 0
            wrong = [error for _, error in refused if error.code() != KafkaError.MSG_SIZE_TOO_LARGE]
            assert not wrong, wrong
            assert time.monotonic() < end, refused[0][1]
            records = [one for one, _ in refused]

    def end_offsets(self) -> int:
        """Records in all three topics."""
        return sum(
            self._reader.get_watermark_offsets(TopicPartition(topic.name, partition), timeout=10)[1]
            for topic in KAFKA_TOPICS
            for partition in range(topic.partitions)
        )


def rows(settings: Settings, table):
    delta = open_table(settings.lake_path, table)
    return [] if delta is None else delta.to_pyarrow_table().to_pylist()


def read(settings: Settings) -> int:
    """Messages that the job has accounted for."""
    delta = open_table(settings.lake_path, BATCHES)
    return 0 if delta is None else pc.sum(delta.to_pyarrow_table(columns=["messages"])["messages"]).as_py() or 0


class SessionJob:
    """All of `run_job` in this process, on a session that stays: a start takes no JVM.

    A new start on the same checkpoint reads everything from it, as after a kill; only the operator's Python workers,
    which may hold decoded state, live on.
    """

    def __init__(self, spark: SparkSession, settings: Settings, sink_type: type[LakeSink] = LakeSink) -> None:
        self._spark, self._stop = spark, threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(settings, sink_type), daemon=True)
        self._thread.start()

    def _run(self, settings: Settings, sink_type: type[LakeSink]) -> None:
        try:
            run_job(settings, self._stop, session=self._borrowed, sink_type=sink_type)
        except BaseException as failure:
            self.failure = failure

    @contextmanager
    def _borrowed(self, settings: Settings, _scratch: Path) -> Iterator[SparkSession]:
        """The session with the settings' own values for queries, until the job ends."""
        given, conf = read_spark_conf(settings.path(settings.stream.spark_conf)), self._spark.conf
        changed = {
            key: conf.get(key)
            for key, value in given.items()
            if conf.isModifiable(key) and conf.get(key, None) != value
        }
        for key in changed:
            conf.set(key, given[key])
        try:
            yield self._spark
        finally:
            for query in self._spark.streams.active:
                query.stop()
            for key, value in changed.items():
                conf.set(key, value)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> BaseException | None:
        """Waits until it ends by itself; what it raised."""
        self._thread.join(180)
        assert not self.is_running
        return self.failure

    def stop(self) -> None:
        """Stops it as a signal would, between two batches; it must not have failed."""
        self._stop.set()
        if failure := self.end():
            raise failure


class Job:
    """The job in a process group of its own."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                command,
                cwd=HOME,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(HOME)},
            )

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def stop(self) -> int:
        """SIGTERM to the driver alone, as a supervisor would; the exit code."""
        self.process.terminate()
        return self.process.wait(90)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def load_round(number: int) -> list:
    """Samples of all topics; each round moves every rate by more than the band."""
    at = now_ms()
    return [stats({0: 1_000.0 * 2**number, 1: 1.0}, at, topic) for topic in TOPICS]


@contextmanager
def fed_all_along(feed: Feed, every_s: float = 0.5) -> Iterator[None]:
    """While it is open, another round of loads now and then, a change of consumers and a tick arrive."""
    stop = threading.Event()

    def keep_feeding() -> None:
        number = 1
        while not stop.wait(every_s):
            feed.send(*load_round(number % 9), consumers(number % 7, topic=TOPICS[number % 4]), tick(now_ms()))
            number += 1

    feeder = threading.Thread(target=keep_feeding)
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        feeder.join()


def stop_when_all_is_read(
    job: Job | SessionJob, start: Callable[[], Job | SessionJob], settings: Settings, feed: Feed
) -> None:
    """Stops the job once it has read everything. A tick that it wrote just before its end is read by one more."""
    for _ in range(3):
        wait_until(lambda: read(settings) == feed.end_offsets(), 180, 0.2)
        assert job.stop() in (0, None)
        if read(settings) == feed.end_offsets():
            return
        job = start()
    raise AssertionError("each of three jobs left something unread")


def check_nothing_lost_and_nothing_twice(settings: Settings, feed: Feed, read_twice: int = 0) -> None:
    # A job of its own accord writes a tick at each full hour, which may be under way.
    wait_until(lambda: read(settings) == feed.end_offsets() + read_twice, BATCH_SECONDS, 0.2)
    batches = rows(settings, BATCHES)
    for generation in {row["generation"] for row in batches}:
        mine = sorted((row for row in batches if row["generation"] == generation), key=lambda row: row["batch_id"])
        assert mine[0]["previous"] is None
        for before, row in pairwise(mine):
            # A row without a checksum is of an older release, which named none.
            assert row["previous"] == (None if row["checksum"] is None else before["batch_id"])
    for row in batches:
        assert row["messages"] == row["messages_accepted"] + row["messages_suppressed"] + row["dead_letters"]
        assert row["samples"] == row["samples_accepted"] + row["samples_insignificant"] + row["samples_stale"]
    assert sum(row["samples_accepted"] for row in batches) == len(rows(settings, SEGMENT_LOAD))
    for table, column in ((EVENTS, "events"), (DECISIONS, "decisions"), (HOLDS, "holds")):
        assert sum(row[column] for row in batches) == len(rows(settings, table)), table.name
    of_samples = [row["sample"] is not None for row in rows(settings, DEAD_LETTERS)]
    assert sum(row["dead_letters"] for row in batches) == of_samples.count(False)
    assert sum(row["samples_refused"] or 0 for row in batches) == of_samples.count(True)
    for table in (EVENTS, DEAD_LETTERS):
        coordinates = [
            (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"], row.get("sample"))
            for row in rows(settings, table)
        ]
        assert len(set(coordinates)) == len(coordinates)
    for table in (DECISIONS, HOLDS):
        by_subject: dict[str, list[int]] = {}
        for row in rows(settings, table):
            by_subject.setdefault(row["subject"], []).append(row["seq"])
        for subject, numbers in by_subject.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), (table.name, subject)
