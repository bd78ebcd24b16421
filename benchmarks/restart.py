"""A fleet's first layouts, the same ones again, and a job that is killed and started again: what they take.

Run as `python -m benchmarks.restart [--quick]`. A broker, and the job as a process of its own (`anabranch stream`).
Layouts, consumers and snapshots: processor time of all its processes, for each message. Restart: `kill -9` of the job
with all that it has started, then the seconds from the start of the new process to the first committed row of
`batches`, whose batch has samples and a tick over every topic, and where they go. Prints a table and writes
benchmarks/restart.json.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.feeds import consumers_message
from benchmarks.fleet import Fleet, Sender
from benchmarks.jobs import batches_of, on_a_broker
from benchmarks.processes import descendants, process_seconds, resident_mb
from schemas.ids import EVERY_TOPIC
from schemas.kafka import CONSUMER_EVENTS, CONTROL_EVENTS
from schemas.messages import TickEvent
from schemas.settings import Settings

RESULT = Path(__file__).parent / "restart.json"
SEGMENTS = 10
TOPICS = (10_000, 100_000)
QUICK_TOPICS = (1_000,)
RESTARTS = 3
MOST = 100_000
MAX_SECONDS = 600.0


class JobProcess:
    """The job as a process."""

    def __init__(self, settings: Settings, work: Path) -> None:
        self._settings, self._log = settings, work / "job.log"
        file = work / "job.toml"
        file.write_text((work / "bench.toml").read_text() + f'[kafka]\nbootstrap = "{settings.kafka.bootstrap}"\n')
        self._command = [sys.executable, "-m", "anabranch.cli", "--config", str(file), "stream"]

    def start(self) -> float:
        """Starts it; the instant, by the wall clock."""
        at = time.time()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        return at

    def kill(self) -> None:
        """`kill -9` of it and of all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def seconds(self) -> dict[str, float]:
        """Processor time so far of the driver's Python, of the JVM, and of the Python workers."""
        found = {"driver": process_seconds(self._process.pid), "jvm": 0.0, "workers": 0.0}
        for pid in descendants(self._process.pid):
            found["jvm" if _is_java(pid) else "workers"] += process_seconds(pid)
        return found

    def resident(self) -> dict[str, int]:
        """Resident memory by process, MiB."""
        found = resident_mb(self._process.pid)
        jvm = next(pid for pid in descendants(self._process.pid) if _is_java(pid))
        return {"driver": found["jvm"], "jvm": (of := resident_mb(jvm))["jvm"], "largest worker": of["largest worker"]}

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Returns when that is so; ends the benchmark when the job has ended instead, or it takes too long."""
        due = time.monotonic() + MAX_SECONDS
        while not is_done():
            if self._process.poll() is not None or time.monotonic() > due:
                raise SystemExit(f"the job did not get on:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.05)

    def said_at(self, words: str) -> float | None:
        """When a line with these words was logged."""
        line = next((line for line in self._log.read_text().splitlines() if words in line), None)
        return None if line is None else datetime.fromisoformat(line.split(" ")[0]).timestamp()


def main(quick: bool) -> None:
    """Measures, prints, writes."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()}
    found = {}
    for topics in QUICK_TOPICS if quick else TOPICS:
        with tempfile.TemporaryDirectory() as work, on_a_broker(Path(work), 16, MOST) as settings:
            found[str(topics)] = _measure(settings, Path(work), topics, 1 if quick else RESTARTS)
        _show(topics, found[str(topics)])
    if not quick:
        RESULT.write_text(json.dumps({"machine": machine, "topics": found}, indent=2) + "\n")


def _measure(settings: Settings, work: Path, topics: int, restarts: int) -> dict[str, Any]:
    fleet, sender, job = Fleet(topics, SEGMENTS, 0.1), Sender(settings.kafka.bootstrap), JobProcess(settings, work)
    job.start()
    taken = _Taken(settings)
    try:
        with _warm(job, sender, taken):
            layouts = list(fleet.layouts())
            consumers = [consumers_message(name, "snapshot", 1, _now()) for name in fleet.names]
        found: dict[str, Any] = {"cpu_us_each": {}}
        feeds = {
            "first layouts": (CONTROL_EVENTS.name, layouts),
            "first consumers": (CONSUMER_EVENTS.name, consumers),
            "equal layouts": (CONTROL_EVENTS.name, [(name, _again(value)) for name, value in layouts]),
            "equal consumers": (CONSUMER_EVENTS.name, consumers),
        }
        for name, (source, messages) in feeds.items():
            found["cpu_us_each"][name] = _cost(job, sender, taken, source, messages)
        sender.round(fleet, _now())
        sender.flush()
        taken.expect(len(fleet.names))
        job.wait(taken.all)
        found["resident_mb"] = job.resident()
        found["restarts"] = [_restart(job, settings, sender, fleet) for _ in range(restarts)]
        return found
    finally:
        job.kill()


def _again(layout: bytes) -> bytes:
    return layout.replace(b'"cause":"created"', b'"cause":"snapshot"')


class _Taken:
    """How many messages the job has taken in, beside how many it should have."""

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
def _warm(job: JobProcess, sender: Sender, taken: _Taken) -> Iterator[None]:
    """Whatever a JVM does only once is done: a thousand other topics have come. The block is run meanwhile."""
    others = Fleet(1_000, SEGMENTS, 0.0, "warm")
    sender.layouts(others)
    sender.flush()
    yield
    taken.expect(len(others.names) + 1)  # and the job's own policy
    job.wait(taken.all)


def _cost(
    job: JobProcess, sender: Sender, taken: _Taken, source: str, messages: list[tuple[str, bytes]]
) -> dict[str, float]:  # fmt: skip
    before = job.seconds()
    sender.send(source, iter(messages))
    sender.flush()
    taken.expect(len(messages))
    job.wait(taken.all)
    after = job.seconds()
    found = {name: round((after[name] - before[name]) / len(messages) * 1e6, 1) for name in before}
    return {**found, "sum": round(sum(found.values()), 1)}


def _restart(job: JobProcess, settings: Settings, sender: Sender, fleet: Fleet) -> dict[str, float]:
    known = len(batches_of(settings))
    job.kill()
    sender.round(fleet, _now())
    tick = TickEvent(v=1, type="tick", at=_now())
    sender.send(CONTROL_EVENTS.name, iter([(EVERY_TOPIC, tick.to_json().encode())]))
    sender.flush()
    started = job.start()
    job.wait(lambda: any(row["evaluations"] >= len(fleet.names) for row in batches_of(settings)[known:]))
    rows = batches_of(settings)[known:]
    planned, committed = rows[0]["batch_at"].timestamp(), rows[0]["committed_at"].timestamp()
    ticked = next(row for row in rows if row["evaluations"] >= len(fleet.names))["committed_at"].timestamp()
    query = job.said_at("reading ") or planned
    return {
        "to the query's start": round(query - started, 2),
        "to the first batch": round(planned - started, 2),
        "to its commit": round(committed - started, 2),
        "to the first tick's commit": round(ticked - started, 2),
        "operator": round(rows[0]["operator_ms"] / 1000, 2),
        **{f"cpu {name}": round(seconds, 1) for name, seconds in job.seconds().items()},
    }


def _show(topics: int, found: dict[str, Any]) -> None:
    print(f"\n{topics:,} topics of {SEGMENTS}; load {os.getloadavg()[1]:.2f}; resident MB {found['resident_mb']}")
    for name, cost in found["cpu_us_each"].items():
        print(f"  {name:20}" + ", ".join(f"{part} {value:6.1f}" for part, value in cost.items()) + "  us each")
    for name in found["restarts"][0]:
        values = [one[name] for one in found["restarts"]]
        print(f"  restart, {name:30}{statistics.median(values):8.2f} s   ({min(values)} to {max(values)})")


def _is_java(pid: int) -> bool:
    try:
        return "java" in psutil.Process(pid).name()
    except psutil.Error:
        return False


def _now() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main("--quick" in sys.argv)
