"""Throughput of the job, from a real Kafka broker to committed Delta tables, against two floors.

Run as `python -m benchmarks.stream [--quick] [--only NAME]`. Each case is a process with a broker, a lake and a Spark
of its own. The samples are in Kafka before the job starts, so that producing them is not what is measured; what happens
in service meanwhile happens here too: ticks over every topic, consumer events, the controller's snapshots, and topics
that become hot, so that decisions are committed. `benchmarks.floors` says what is compared with.

`sustained` is a million segments for as long as its backlog lasts; `ticks` evaluates them until every topic's hold is
on record, and some more times; the other cases show how cost grows, and with what. Prints a table and writes
benchmarks/stream.json.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.feeds import feeding
from benchmarks.fleet import BenchmarkFleet, InColumns, MessageSender
from benchmarks.floors import measure_floors
from benchmarks.jobs import batches_of, on_a_broker, seconds_between
from benchmarks.processes import folder_bytes, resident_mb, seconds_by_part
from benchmarks.record import machine_now, print_row, recorded_report, write_report
from schemas.ids import EVERY_TOPIC
from schemas.kafka.messages import TickEvent
from schemas.kafka.topics import CONTROL_EVENTS
from schemas.settings.root import Settings
from streaming.job.job import start_query
from streaming.job.session import start_session
from streaming.job.ticks import TickWriter
from streaming.sink.sink import LakeSink

FLOOR_SAMPLES = 6_000_000
"""Maximum of samples that a floor reads."""
HOT = 0.01
"""Share of the topics that become hot during a case, evenly: each is decided on once."""


@dataclass(frozen=True)
class StreamCase:
    """A fleet and how much of it is taken in."""

    topics: int
    segments: int
    """Of each topic."""
    significant: float
    """Share of segments that move by more than the band in each round."""
    rounds: int
    reporters: int = 1
    """Of each topic: every one sends a message of its own with the segments that it owns."""
    together: int = 0
    """Samples of a message in columns; 0: a message of each reporter for each topic."""
    tick_seconds: int = 10
    """Between two ticks while samples are taken in; a short case needs more than one."""
    ticks: int = 0
    """Ticks over every topic after another start of the query, one after the other."""

    @property
    def samples(self) -> int:
        return self.topics * self.segments * self.rounds

    @property
    def form(self) -> InColumns | None:
        return InColumns(self.reporters, self.together) if self.together else None

    @property
    def messages(self) -> int:
        if self.together:
            return self.rounds * self.reporters * -(-self.topics * self.segments // (self.reporters * self.together))
        return self.topics * self.reporters * self.rounds

    @property
    def most(self) -> int:
        """Messages of a batch: a million samples, or 100,000 messages; fewer when that leaves too few batches."""
        return max(1, min(100_000, 1_000_000 * self.messages // self.samples, self.messages // 20))


CASES = {
    "sustained": StreamCase(100_000, 10, 0.1, 24, tick_seconds=60),
    "sustained, columns": StreamCase(100_000, 10, 0.1, 120, reporters=12, together=1_000, tick_seconds=60),
    "ticks": StreamCase(100_000, 10, 0.1, 2, ticks=20),
    "10k segments": StreamCase(1_000, 10, 0.1, 400),
    "100k segments": StreamCase(10_000, 10, 0.1, 60),
    "3 reporters a topic": StreamCase(10_000, 10, 0.1, 40, reporters=3),
    "1 segment a message": StreamCase(10_000, 10, 0.1, 20, reporters=10),
    "1 a topic": StreamCase(100_000, 1, 0.1, 20),
    "64 a topic": StreamCase(1_563, 64, 0.1, 60),
    "columns, 1 reporter": StreamCase(10_000, 10, 0.1, 120, reporters=1, together=1_000),
    "columns, 3 reporters": StreamCase(10_000, 10, 0.1, 120, reporters=3, together=1_000),
    "columns, 10 reporters": StreamCase(10_000, 10, 0.1, 120, reporters=10, together=1_000),
    "columns, 1 a topic": StreamCase(100_000, 1, 0.1, 120, reporters=3, together=1_000),
    "columns, 64 a message": StreamCase(10_000, 10, 0.1, 60, reporters=3, together=64),
    "none significant": StreamCase(10_000, 10, 0.0, 120, reporters=3, together=1_000),
    "all significant": StreamCase(10_000, 10, 1.0, 60, reporters=3, together=1_000),
    "2.5M segments": StreamCase(250_000, 10, 0.1, 8, reporters=10, together=1_000, ticks=4, tick_seconds=5),
    "10M segments": StreamCase(1_000_000, 10, 0.1, 4, reporters=10, together=1_000, ticks=4, tick_seconds=15),
}
QUICK = {
    "10k segments": StreamCase(1_000, 10, 0.1, 100, tick_seconds=2, ticks=6),
    "columns, 3 reporters": StreamCase(1_000, 10, 0.1, 400, reporters=3, together=1_000, tick_seconds=2),
}


@click.command()
@click.option("--quick", is_flag=True, help="A short look: fewer sizes, less time.")
@click.option("--only", metavar="NAME", help="Only this case.")
@click.option("--case", nargs=2, hidden=True)
def main(quick: bool, only: str | None, case: tuple[str, str] | None) -> None:
    """Measures, prints, writes each case when it is done; what was not measured stays as it is on record."""
    if case is not None:
        run_case(StreamCase(**json.loads(case[0])), Path(case[1]))
        return
    machine = machine_now()
    print(machine)
    for name, chosen in (QUICK if quick else CASES).items():
        if only in (None, name):
            result = measured(chosen)
            print_row({name: result})
            if not quick:
                cases = recorded_report("stream")["cases"]
                cases = {recorded: cases[recorded] for recorded in CASES if recorded in cases} | {name: result}
                write_report("stream", {"machine": machine, "cases": cases})


def measured(case: StreamCase) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "benchmarks.stream", "--case", json.dumps(asdict(case)), work]
        with open(f"{work}/log", "w") as log:
            code = subprocess.run(command, stdout=None, stderr=log, check=False).returncode
        if code:
            raise SystemExit(Path(f"{work}/log").read_text()[-4000:])
        report: dict[str, Any] = json.loads(Path(f"{work}/report.json").read_text())
        return {**asdict(case), "load": round(os.getloadavg()[1], 2), **report}


def run_case(case: StreamCase, work: Path) -> None:
    """One case in the folder `work`; leaves `report.json` there."""
    with on_a_broker(work, 16, case.most) as settings:
        _produce(settings.kafka.bootstrap, case)
        (work / "report.json").write_text(json.dumps(_measure(settings, case)))


def _produce(bootstrap: str, case: StreamCase) -> None:
    reporters = 1 if case.together else case.reporters
    sender, fleet = (
        MessageSender(bootstrap),
        BenchmarkFleet(case.topics, case.segments, case.significant, reporters=reporters),
    )
    sender.layouts(fleet)
    now = time.time_ns() // 1_000_000
    for number in range(case.rounds):
        print(f"\rproducing round {number + 1} of {case.rounds} …", end="", flush=True)
        if case.significant:
            fleet.heat(round((number + 1) / case.rounds * HOT * case.topics))
        sender.round(fleet, now - (case.rounds - number) * 1_000, case.form)
    sender.flush()
    print("\r" + " " * 60 + "\r", end="", flush=True)


def _measure(settings: Settings, case: StreamCase) -> dict[str, Any]:
    spark = start_session(settings, {"spark.driver.memory": "3g"})
    try:
        # Partitions are not of quite the same length.
        messages = min(int(case.messages * 0.9), FLOOR_SAMPLES * case.messages // case.samples)
        floors = measure_floors(spark, settings, messages)
        jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        batches, spent = _run_job(spark, settings, case, jvm)
        checkpoint = folder_bytes(Path(settings.stream.checkpoint))
        resident = resident_mb(jvm)
        ticks = _ticks(spark, settings, case.ticks)
    finally:
        spark.stop()
    return {
        "floors": {name: round(rate * case.samples / case.messages) for name, rate in floors.items()},
        "job": (job := _throughput(batches, case)),
        "core_seconds_per_million": per_million(spent, *job.pop("interval"), job.pop("samples")),
        "checkpoint_mb": round(checkpoint / 1e6, 1),
        "resident_mb": resident,
        "ticks": ticks
        and {"first batch": ticks[0], "first": ticks[1], "steady": statistics.median(ticks[-3:]), "seconds": ticks[1:]},
    }


def _run_job(
    spark: SparkSession, settings: Settings, case: StreamCase, jvm: int
) -> tuple[list[dict[str, Any]], list[tuple[float, dict[str, float]]]]:
    """Run the job under background traffic on all samples; return batches, and CPU time at instants."""
    spent: list[tuple[float, dict[str, float]]] = []
    ticks = TickWriter(settings.kafka_connection(), case.tick_seconds)
    query = start_query(spark, settings, LakeSink(settings.lake_path, ticks.ask))
    try:
        ticks.start()
        with feeding("announcements", settings.kafka.bootstrap, topics=case.topics, segments=case.segments):
            while (ingested := sum(row["samples"] for row in batches_of(settings))) < case.samples:
                if query.exception() is not None:
                    raise SystemExit(str(query.exception()))
                spent.append((time.time(), seconds_by_part(jvm)))
                print(f"\r{ingested:,} of {case.samples:,} samples …", end="", flush=True)
                threading.Event().wait(2)
        print("\r" + " " * 60 + "\r", end="", flush=True)
        return batches_of(settings), spent
    finally:
        ticks.stop()
        query.stop()


def _ticks(spark: SparkSession, settings: Settings, count: int) -> list[float]:
    """Return batch seconds after a start of the query: of its first batch, then of `count` full ticks.

    The first batch has the policy that the job announces. The first ticks put the fleet's holds on record.
    """
    if not count:
        return []
    producer = Producer(settings.kafka_connection().librdkafka())
    earlier = len(batches_of(settings))
    query = start_query(spark, settings, LakeSink(settings.lake_path, lambda *_: None))
    try:
        while len(batches_of(settings)) <= earlier:
            threading.Event().wait(0.2)
        for number in range(1, count + 1):
            tick = TickEvent(v=1, type="tick", at=time.time_ns() // 1_000_000)
            producer.produce(CONTROL_EVENTS.name, tick.to_json().encode(), EVERY_TOPIC.encode())
            producer.flush(10)
            while len(batches_of(settings)) <= earlier + number:
                threading.Event().wait(0.2)
    finally:
        query.stop()
    return [round(_batch_seconds(row), 3) for row in batches_of(settings)[earlier:]]


def _throughput(batches: list[dict[str, Any]], case: StreamCase) -> dict[str, Any]:
    """Measure from the end of the batch with the last new topic, once caches are warm, to the last commit.

    `samples_per_second` counts all of that time, also what lies between batches; `by_tenth` is the same for each tenth
    of the batches, so that drift shows.
    """
    with_samples = [row for row in batches if row["samples"]]
    first = next(index for index, row in enumerate(with_samples) if _events_until(batches, row) >= case.topics)
    warm = with_samples[min(first + 2, len(with_samples) // 2) :]
    between = [row for row in batches if warm[0]["batch_id"] < row["batch_id"] <= warm[-1]["batch_id"]]
    surroundings = {name: sum(row[name] for row in between) for name in ("events", "evaluations", "decisions", "holds")}
    if case.significant and not (surroundings["evaluations"] and surroundings["decisions"]):
        raise SystemExit("no tick and no decision in the interval that was timed: this is not what a job does")
    seconds = seconds_between(warm[0]["committed_at"], warm[-1]["committed_at"])
    parts = [warm[start : start + len(warm) // 10 + 1] for start in range(0, len(warm) - 1, max(1, len(warm) // 10))]
    return {
        "interval": (warm[0]["committed_at"].timestamp(), warm[-1]["committed_at"].timestamp()),
        "samples": _samples(warm[1:]),
        "samples_per_second": round(_samples(warm[1:]) / seconds),
        "seconds": round(seconds, 1),
        "batches": len(warm),
        "meanwhile": surroundings,
        "batch_seconds": statistics.median(_batch_seconds(row) for row in warm),
        "by_tenth": [
            round(_samples(part[1:]) / seconds_between(part[0]["committed_at"], part[-1]["committed_at"]))
            for part in parts
            if len(part) > 1
        ],
        "accepted": sum(row["samples_accepted"] for row in warm) / _samples(warm),
        "operator_us_per_sample": round(1000 * sum(row["operator_ms"] for row in warm) / _samples(warm), 3),
        "first_batches_seconds": [round(_batch_seconds(row), 1) for row in batches[:4]],
    }


def per_million(
    spent: list[tuple[float, dict[str, float]]], start: float, end: float, samples: int
) -> dict[str, float]:
    """Return core-seconds of each part per million samples within an interval; `spent` is in time order."""
    instants = [instant for instant, _ in spent]
    by_part = {}
    for part in spent[0][1]:
        first, last = np.interp([start, end], instants, [parts[part] for _, parts in spent])
        by_part[part] = round(float(last - first) * 1e6 / samples, 3)
    return by_part


def _events_until(batches: list[dict[str, Any]], last: dict[str, Any]) -> int:
    return sum(row["events"] for row in batches if row["batch_id"] <= last["batch_id"])


def _batch_seconds(row: dict[str, Any]) -> float:
    return seconds_between(row["batch_at"], row["committed_at"])


def _samples(rows: list[dict[str, Any]]) -> int:
    return sum(row["samples"] for row in rows)


if __name__ == "__main__":
    main()
