"""A broker and the job on it as a process of its own, as the benchmarks start, watch, kill and measure it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jars
from benchmarks.fleet import BenchmarkFleet, MessageSender
from benchmarks.processes import descendants, process_seconds, resident_mb
from lake.tables import open_table
from schemas.settings.root import Settings, load_settings
from schemas.tables.rows import BATCHES

MAX_SECONDS = 600.0


class JobProcess:
    """The job as a process."""

    def __init__(self, settings: Settings, work: Path) -> None:
        self._settings, self._log = settings, work / "job.log"
        file = work / "job.toml"
        file.write_text((work / "bench.toml").read_text() + f'[kafka]\nbootstrap = "{settings.kafka.bootstrap}"\n')
        self._command = [sys.executable, "-m", "anabranch", "--config", str(file), "stream"]

    def start(self) -> float:
        """Starts it; the instant, by the wall clock."""
        started_at = time.time()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        return started_at

    def kill(self) -> None:
        """`kill -9` of it and of all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def seconds(self) -> dict[str, float]:
        """Processor time so far of the driver's Python, of the JVM, and of the Python workers."""
        by_process = {"driver": process_seconds(self._process.pid), "jvm": 0.0, "workers": 0.0}
        for pid in descendants(self._process.pid):
            by_process["jvm" if _is_java(pid) else "workers"] += process_seconds(pid)
        return by_process

    def resident(self) -> dict[str, int]:
        """Resident memory by process, MiB."""
        driver_mb = resident_mb(self._process.pid)
        jvm = next(pid for pid in descendants(self._process.pid) if _is_java(pid))
        return {
            "driver": driver_mb["jvm"],
            "jvm": (jvm_mb := resident_mb(jvm))["jvm"],
            "largest worker": jvm_mb["largest worker"],
        }

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Returns when that is so; ends the benchmark when the job has ended instead, or it takes too long."""
        due = time.monotonic() + MAX_SECONDS
        while not is_done():
            if self._process.poll() is not None or time.monotonic() > due:
                raise SystemExit(f"the job did not get on:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.05)

    def said_at(self, words: str) -> float | None:
        """Return when a line with these words was logged, in Unix seconds; None if it was not."""
        line = next((line for line in self._log.read_text().splitlines() if words in line), None)
        return None if line is None else datetime.fromisoformat(line.split(" ")[0]).timestamp()


class IngestionCounter:
    """Counter of messages that the job has read, compared with those it should have."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._expected = self.so_far()

    def so_far(self) -> int:
        return sum(row["messages"] for row in batches_of(self._settings))

    def expect(self, more: int) -> None:
        self._expected += more

    def all(self) -> bool:
        return self.so_far() >= self._expected


@contextmanager
def warm(job: JobProcess, sender: MessageSender, ingested: IngestionCounter, topics: int = 1_000) -> Iterator[None]:
    """Whatever a JVM does only once is done: so many other topics have come. The block is run meanwhile."""
    sender.layouts(BenchmarkFleet(topics, 10, 0.0, "warm"))
    sender.flush()
    yield
    ingested.expect(topics + 1)  # and the job's own policy
    job.wait(ingested.all)


def _is_java(pid: int) -> bool:
    try:
        return "java" in psutil.Process(pid).name()
    except psutil.Error:
        return False


@contextmanager
def on_a_broker(work: Path, buckets: int, most: int) -> Iterator[Settings]:
    """Start a broker with the three topics in `work`; yield the job's settings. `most`: messages a batch."""
    settings = bench_settings(work, buckets, most)
    broker = EmbeddedBroker(work / "kafka", ensure_jars(settings, print).kafka, heap="512m")
    broker.start()
    try:
        create_topics(broker.connection)
        kafka = settings.kafka.model_copy(update={"bootstrap": broker.bootstrap})
        yield settings.model_copy(update={"kafka": kafka})
    finally:
        broker.stop()


def bench_settings(work: Path, buckets: int, most: int) -> Settings:
    """The job's settings for a benchmark in the folder `work`; whoever wants ticks writes them."""
    file, policy = work / "bench.toml", work / "policy.toml"
    # Samples lie in Kafka for minutes before they are read: they are to be decided on all the same.
    policy.write_text("maxLoadAgeSeconds = 86400\n")
    file.write_text(
        f'[policy]\ncluster = "{policy}"\n'
        f'[lake]\npath = "{work}/lake"\n[stream]\ncheckpoint = "{work}/checkpoint"\nbuckets = {buckets}\n'
        f"tick_seconds = 86400\nmax_stats_per_batch = {most}\n"
        f'max_events_per_batch = 50000\n[local]\nfolder = "{work}"\n'
    )
    return load_settings([file], environment={})


def batches_of(settings: Settings) -> list[dict[str, Any]]:
    """The rows of `batches`, in order."""
    table = open_table(settings.lake_path, BATCHES)
    return sorted([] if table is None else table.to_pyarrow_table().to_pylist(), key=lambda row: row["batch_id"])


def seconds_between(start: datetime, end: datetime) -> float:
    """Seconds from one instant to another."""
    return (end - start).total_seconds()
