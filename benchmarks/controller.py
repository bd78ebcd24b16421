"""What the controller carries on one node: topics, changes a second, and clients that see a split, against floors.

Run as `python -m benchmarks.controller [--quick] [topics|watching]`; with one part named, the figures of the other one
stay. The controller is a process of its own, with SQLite, a real broker behind its outbox, and real sockets. Two parts:

- *topics*: at 100, 1,000 and 10,000 topics: creations and splits a second over REST, one after the other and four at a
  time; the start of the process with so many topics; its memory. The floor is a bare SQLite commit with the same
  settings, on the same disk, in turns with what is measured.
- *watching*: 10, 100 and 1,000 sessions on one topic, half of them server-sent events and half WebSocket, in this
  process: from the call of a split until each has the whole new layout. The floor is one broadcast of as many bytes to
  as many clients by a bare asyncio server.

Prints a table and writes benchmarks/controller.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import process_seconds, resident_kb
from benchmarks.watchers import Kind, Watcher, all_have, watch
from lab.broker import EmbeddedBroker, create_topics
from lab.setup import ensure_jars
from schemas.settings import load_settings

TOPICS = (100, 1_000, 10_000)
SESSIONS = (10, 100, 1_000)
SPLITS = 20
"""Splits that are watched in a round."""
ROUNDS = 3
PARTS = {"topics", "watching"}
SHARES = {"p50": 0.5, "p99": 0.99, "most": 1.0}
CALLERS = 4
MEASURED = 1_000
"""Topics whose creation and split are measured, the last ones of each size."""
STARTS = 3
BATCH = 100
"""Calls between two looks at the floor."""
NAMESPACE = "/admin/v2/scalable/acme/shop"


RESULT = Path(__file__).parent / "controller.json"


def main(quick: bool, parts: set[str]) -> None:
    """Measures, prints, writes."""
    topics, sessions = (TOPICS[:2], SESSIONS[:2]) if quick else (TOPICS, SESSIONS)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        jars = ensure_jars(load_settings(environment={}), print)
        broker = EmbeddedBroker(work / "kafka", jars.kafka, heap="256m")
        broker.start()
        try:
            create_topics(broker.bootstrap)
            settings = work / "bench.toml"
            settings.write_text(
                f'[kafka]\nbootstrap = "{broker.bootstrap}"\n[controller]\nport = 0\ndatabase = "{work}/layouts.db"\n'
                "snapshot_seconds = 86400\n"
            )
            report = {} if parts == PARTS else json.loads(RESULT.read_text())
            if "topics" in parts:
                report["topics"] = {"machine": _machine(), "sizes": _topics(work, settings, topics)}
            if "watching" in parts:
                report["watching"] = {"machine": _machine(), "sizes": _watching(settings, sessions)}
        finally:
            broker.stop()
    _show(report)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.machine(),
        "load_before": round(os.getloadavg()[0], 1),
    }


@contextmanager
def _controller(settings: Path) -> Iterator[tuple[str, int, float]]:
    """A controller process: its URL, its id, and the seconds from its start to its first answer."""
    began = time.perf_counter()
    with _process([sys.executable, "-m", "anabranch.cli", "-c", str(settings), "controller"]) as (process, line):
        url = line.rpartition(" ")[2]
        assert httpx.get(f"{url}{NAMESPACE}", params={"property": "no=one"}).status_code == 200
        yield url, process.pid, time.perf_counter() - began


@contextmanager
def _process(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs meanwhile, and the first line that it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANABRANCH_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def _topics(work: Path, settings: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    floor = _Floor(work / "floor.db")
    empty = work / "empty.toml"
    empty.write_text(settings.read_text().replace("layouts.db", "empty.db"))
    before_kb = _used(empty, 1)
    before = 0
    for topics in sizes:
        names = [f"{NAMESPACE}/t{number}" for number in range(before, topics)]
        with _controller(settings) as (url, _, _):
            _call_all(url, [("PUT", name) for name in names[:-MEASURED]])
            create = _rates(url, floor, [("PUT", name) for name in names[-MEASURED:]])
            split = _rates(url, floor, [("POST", f"{name}/split/0") for name in names[-MEASURED:]])
        used_kb = _used(settings, topics)
        starts: dict[Path, list[float]] = {settings: [], empty: []}
        for file in (settings, empty) * STARTS:
            with _controller(file) as (_, _, seconds):
                starts[file].append(seconds)
        found.append({
            "topics": topics,
            "start_seconds": round(statistics.median(starts[settings]), 2),
            "start_seconds_without": round(statistics.median(starts[empty]), 2),
            "resident_kb": used_kb,
            "memory_bytes_per_topic": round((used_kb - before_kb) * 1024 / (topics - before)),
            "disk_bytes_per_topic": round((work / "layouts.db").stat().st_size / topics),
            "creations": create,
            "splits": split,
        })  # fmt: skip
        before, before_kb = topics, used_kb
    return found


def _used(settings: Path, topics: int) -> int:
    """Resident KiB of a controller once every topic was asked for and all were listed."""
    with _controller(settings) as (url, pid, _):
        _call_all(url, [("GET", f"{NAMESPACE}/t{number}/stats") for number in range(topics)])
        _call_all(url, [("GET", NAMESPACE)])
        return resident_kb(pid)


def _call_all(url: str, calls: list[tuple[str, str]]) -> None:
    with httpx.Client(base_url=url) as client, ThreadPoolExecutor(CALLERS) as pool:
        for _ in pool.map(lambda call: client.request(*call), calls):
            pass


def _rates(url: str, floor: _Floor, calls: list[tuple[str, str]]) -> dict[str, float]:
    """Calls a second, by one caller and by several, and commits of the floor: medians of batches, taken in turns."""
    rates: dict[str, list[float]] = {"one_caller": [], "four_callers": [], "floor": []}
    batch = max(10, min(BATCH, len(calls) // 6))
    with (
        httpx.Client(base_url=url, limits=httpx.Limits(max_keepalive_connections=CALLERS)) as client,
        ThreadPoolExecutor(CALLERS) as pool,
    ):

        def call(one: tuple[str, str]) -> None:
            answer = client.request(*one)
            assert answer.status_code == 204, answer.text

        list(pool.map(call, calls[:CALLERS]))
        for number, start in enumerate(range(CALLERS, len(calls), batch)):
            chosen = calls[start : start + batch]
            began = time.perf_counter()
            for _ in pool.map(call, chosen) if number % 2 else map(call, chosen):
                pass
            called = time.perf_counter()
            floor.commit(len(chosen))
            ended = time.perf_counter()
            rates["four_callers" if number % 2 else "one_caller"].append(len(chosen) / (called - began))
            rates["floor"].append(len(chosen) / (ended - called))
    return {name: round(statistics.median(each), 1) for name, each in rates.items()}


class _Floor:
    """One row a transaction, as durable as the controller's: what SQLite and the disk allow."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE rows (value TEXT)")

    def commit(self, times: int) -> None:
        for _ in range(times):
            self._db.execute("INSERT INTO rows VALUES (?)", ("x" * 300,))


def _watching(settings: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    for sessions in sizes:
        with (
            _controller(settings) as (url, pid, _),
            _process([sys.executable, "-m", "benchmarks.watchers"]) as (_, floor),
            httpx.Client(base_url=url) as client,
        ):
            seen: list[float] = []
            least: list[float] = []
            calls: list[float] = []
            busy: list[float] = []
            memory: list[int] = []
            for number in range(ROUNDS):
                path = f"{NAMESPACE}/watched-{sessions}-{number}"
                assert client.put(path, params={"numInitialSegments": 4}).status_code == 204
                one = asyncio.run(_paced(_round(url, floor, path, sessions, pid)))
                seen += one["seen"]
                least += one["floor"]
                calls += one["calls"]
                busy.append(one["busy"])
                memory.append(one["kb_per_session"])
            found.append({
                "sessions": sessions,
                "splits": ROUNDS * SPLITS,
                "message_bytes": one["bytes"],
                "memory_kb_per_session": max(memory),
                "processor_ms_per_split": round(statistics.median(busy), 1),
                "call_p50_ms": _percentile(calls, 0.5),
                **{f"{name}_ms": _percentile(seen, share) for name, share in SHARES.items()},
                **{f"floor_{name}_ms": _percentile(least, share) for name, share in SHARES.items()},
            })  # fmt: skip
    return found


async def _paced(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Reads every 2 ms what has come: a client that is woken for each message costs its server as much as the message.

    So up to 2 ms of what is shown are this client's. Clients elsewhere wake up their own machines.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        time.sleep(0.002)
        await asyncio.sleep(0)
    return task.result()


async def _round(url: str, floor: str, path: str, sessions: int, pid: int) -> dict[str, Any]:
    """Splits of a topic that so many watch, in turns with broadcasts of the floor; milliseconds."""
    before = resident_kb(pid)
    kinds: list[Kind] = ["events" if number % 2 else "socket" for number in range(sessions)]
    watchers = await watch(url, f"{path}/watch", kinds)
    resident = resident_kb(pid)
    others = await watch(floor, "/", ["floor"] * sessions)
    caller = await _Caller.connect(url)
    found: dict[str, Any] = {"seen": [], "floor": [], "calls": [], "kb_per_session": (resident - before) // sessions}
    busy = process_seconds(pid)
    for number in range(SPLITS):
        began = time.perf_counter()
        await caller.post(f"{path}/split/{number}")
        found["calls"].append(1000 * (time.perf_counter() - began))
        await all_have(watchers, number + 2)
        found["seen"] += _since(began, watchers)
        found["bytes"] = max(watcher.bytes for watcher in watchers)
        began = time.perf_counter()
        others[0].send(b"%d\n" % found["bytes"])
        await all_have(others, number + 2)
        found["floor"] += _since(began, others)
    found["busy"] = 1000 * (process_seconds(pid) - busy) / SPLITS
    for one in (*watchers, *others):
        one.close()
    caller.close()
    return found


def _since(began: float, watchers: list[Watcher]) -> list[float]:
    return [1000 * (watcher.seen[-1] - began) for watcher in watchers]


class _Caller:
    """Makes calls in the event loop of the clients, over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str) -> _Caller:
        address = httpx.URL(url)
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def post(self, path: str) -> None:
        self._writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 204"), answer

    def close(self) -> None:
        self._writer.close()


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def _show(report: dict[str, Any]) -> None:
    print(report["topics"]["machine"])
    for row in report["topics"]["sizes"]:
        without = row["start_seconds_without"]
        print(
            f"{row['topics']:7,} topics: start {row['start_seconds']:.2f} s, {without:.2f} s without; "
            f"{row['resident_kb'] / 1024:.0f} MB, {row['memory_bytes_per_topic']:,} B more a topic; "
            f"{row['disk_bytes_per_topic']:,} B of disk each"
        )
        for name in ("creations", "splits"):
            rates = row[name]
            print(
                f"    {name:10} {rates['one_caller']:8,.0f}/s, four callers {rates['four_callers']:8,.0f}/s; floor "
                f"{rates['floor']:8,.0f} commits/s, {rates['floor'] / rates['one_caller']:.1f} times the first"
            )
    print(report["watching"]["machine"])
    for row in report["watching"]["sizes"]:
        print(
            f"{row['sessions']:7,} sessions: p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms, most "
            f"{row['most_ms']:.1f} ms; the floor p50 {row['floor_p50_ms']:.1f} ms, p99 {row['floor_p99_ms']:.1f} ms"
        )
        print(
            f"        {row['message_bytes']:,} B to each; {row['processor_ms_per_split']:.0f} ms of processor a split; "
            f"{row['memory_kb_per_session']} kB of memory a session"
        )


if __name__ == "__main__":
    main("--quick" in sys.argv, PARTS.intersection(sys.argv) or PARTS)
