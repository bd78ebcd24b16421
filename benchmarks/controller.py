"""Capacity of a controller node against floors: topics, changes per second, clients watching a split.

Run as `python -m benchmarks.controller [--quick] [topics] [watching] [nodes] [neighbours]`; with parts named, the
figures of the others stay. The controller is a process of its own, with SQLite, a real broker behind its outbox, and
real sockets:

- *topics*: at 100, 1,000 and 10,000 topics: creations and splits a second over REST, one after the other and four at a
  time; the start of the process with so many topics; its memory. The floor is a bare SQLite commit with the same
  settings, on the same disk, in turns with what is measured.
- *watching*: 10, 100 and 1,000 sessions on one topic, half of them server-sent events and half WebSocket, in this
  process: from the call of a split until each has the whole new layout. The floor is one broadcast of as many bytes to
  as many clients by a bare asyncio server.
- *neighbours*: a split of one client while another one calls at full speed, against the same split alone, in turns.

Prints a table and writes benchmarks/controller.json.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import httpx

from anabranch.local.broker import EmbeddedBroker, create_topics
from anabranch.local.setup import ensure_jars
from benchmarks.neighbours import measure_neighbours
from benchmarks.nodes import measure_nodes
from benchmarks.processes import process_seconds, resident_kb
from benchmarks.record import machine_now, percentile, publish, recorded_report
from benchmarks.serving import NAMESPACE, SqliteFloor, call_all, controller, process_of, rates
from benchmarks.watchers import Kind, Watcher, all_have, watch
from schemas.settings.root import load_settings

TOPICS = (100, 1_000, 10_000)
SESSIONS = (10, 100, 1_000)
SPLITS = 20
"""Splits that are watched in a round."""
ROUNDS = 3
PARTS = ("neighbours", "nodes", "topics", "watching")
SHARES = {"p50": 0.5, "p99": 0.99, "most": 1.0}
MEASURED = 1_000
"""Topics whose creation and split are measured, the last ones of each size."""
STARTS = 3


@click.command()
@click.option("--quick", is_flag=True, help="A short look: fewer sizes, less time.")
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
def main(quick: bool, parts: tuple[str, ...]) -> None:
    """Measures, prints, writes."""
    topics, sessions = (TOPICS[:2], SESSIONS[:2]) if quick else (TOPICS, SESSIONS)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        jars = ensure_jars(load_settings(environment={}), print)
        broker = EmbeddedBroker(work / "kafka", jars.kafka, heap="256m")
        broker.start()
        try:
            create_topics(broker.connection)
            settings = work / "bench.toml"
            settings.write_text(
                f'[kafka]\nbootstrap = "{broker.bootstrap}"\n[controller]\nport = 0\ndatabase = "{work}/layouts.db"\n'
                "snapshot_seconds = 86400\n"
            )
            measures: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
                "topics": ("sizes", lambda: _topics(work, settings, topics)),
                "watching": ("sizes", lambda: _watching(settings, sessions)),
                "nodes": ("sizes", lambda: measure_nodes(work, jars, broker.bootstrap, topics)),
                "neighbours": ("kinds", lambda: measure_neighbours(work, settings)),
            }
            report = {
                part: {"machine": machine_now(), rows: measure()}
                for part, (rows, measure) in measures.items()
                if not parts or part in parts
            }
        finally:
            broker.stop()
    # What was not measured stays as it is on record.
    publish("controller", {**recorded_report("controller"), **report}, quick)


def _topics(work: Path, settings: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    floor = SqliteFloor(work / "floor.db")
    empty = work / "empty.toml"
    empty.write_text(settings.read_text().replace("layouts.db", "empty.db"))
    before_kb = _used(empty, 1)
    before = 0
    for topics in sizes:
        names = [f"{NAMESPACE}/t{number}" for number in range(before, topics)]
        with controller(settings) as (url, _, _):
            call_all(url, [("PUT", name) for name in names[:-MEASURED]])
            create = rates(url, floor, [("PUT", name) for name in names[-MEASURED:]])
            split = rates(url, floor, [("POST", f"{name}/split/0") for name in names[-MEASURED:]])
        used_kb = _used(settings, topics)
        starts: dict[Path, list[float]] = {settings: [], empty: []}
        for file in (settings, empty) * STARTS:
            with controller(file) as (_, _, seconds):
                starts[file].append(seconds)
        rows.append(
            {
                "topics": topics,
                "start_seconds": round(statistics.median(starts[settings]), 2),
                "start_seconds_without": round(statistics.median(starts[empty]), 2),
                "resident_kb": used_kb,
                "memory_bytes_per_topic": round((used_kb - before_kb) * 1024 / (topics - before)),
                "disk_bytes_per_topic": round((work / "layouts.db").stat().st_size / topics),
                "creations": create,
                "splits": split,
            }
        )
        before, before_kb = topics, used_kb
    return rows


def _used(settings: Path, topics: int) -> int:
    """Resident KiB of a controller once every topic was asked for and all were listed."""
    with controller(settings) as (url, pid, _):
        call_all(url, [("GET", f"{NAMESPACE}/t{number}/stats") for number in range(topics)])
        call_all(url, [("GET", NAMESPACE)])
        return resident_kb(pid)


def _watching(settings: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    for sessions in sizes:
        with (
            controller(settings) as (url, pid, _),
            process_of([sys.executable, "-m", "benchmarks.watchers"]) as (_, floor),
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
                figures = asyncio.run(_paced(_round(url, floor, path, sessions, pid)))
                seen += figures["seen"]
                least += figures["floor"]
                calls += figures["calls"]
                busy.append(figures["busy"])
                memory.append(figures["kb_per_session"])
            rows.append(
                {
                    "sessions": sessions,
                    "splits": ROUNDS * SPLITS,
                    "message_bytes": figures["bytes"],
                    "memory_kb_per_session": max(memory),
                    "processor_ms_per_split": round(statistics.median(busy), 1),
                    "call_p50_ms": round(percentile(calls, 0.5), 1),
                    **{f"{name}_ms": round(percentile(seen, share), 1) for name, share in SHARES.items()},
                    **{f"floor_{name}_ms": round(percentile(least, share), 1) for name, share in SHARES.items()},
                }
            )
    return rows


async def _paced(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run `work`, reading input every 2 ms: waking a client for each message costs as much as the message.

    So up to 2 ms of each figure are this client's. Clients elsewhere use the CPU of their own machines.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        time.sleep(0.002)
        await asyncio.sleep(0)
    return task.result()


async def _round(url: str, floor: str, path: str, sessions: int, pid: int) -> dict[str, Any]:
    """Splits of a topic with this many watchers, in turns with broadcasts of the floor; milliseconds."""
    before = resident_kb(pid)
    kinds: list[Kind] = ["events" if number % 2 else "socket" for number in range(sessions)]
    watchers = await watch(url, f"{path}/watch", kinds)
    resident = resident_kb(pid)
    floor_watchers = await watch(floor, "/", ["floor"] * sessions)
    caller = await _Caller.connect(url)
    figures: dict[str, Any] = {"seen": [], "floor": [], "calls": [], "kb_per_session": (resident - before) // sessions}
    busy = process_seconds(pid)
    for number in range(SPLITS):
        began = time.perf_counter()
        await caller.post(f"{path}/split/{number}")
        figures["calls"].append(1000 * (time.perf_counter() - began))
        await all_have(watchers, number + 2)
        figures["seen"] += _since(began, watchers)
        figures["bytes"] = max(watcher.bytes for watcher in watchers)
        began = time.perf_counter()
        floor_watchers[0].send(b"%d\n" % figures["bytes"])
        await all_have(floor_watchers, number + 2)
        figures["floor"] += _since(began, floor_watchers)
    figures["busy"] = 1000 * (process_seconds(pid) - busy) / SPLITS
    for session in (*watchers, *floor_watchers):
        session.close()
    caller.close()
    return figures


def _since(began: float, watchers: list[Watcher]) -> list[float]:
    return [1000 * (watcher.seen[-1] - began) for watcher in watchers]


class _Caller:
    """HTTP caller in the event loop of the clients, over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, url: str) -> "_Caller":
        address = httpx.URL(url)
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def post(self, path: str) -> None:
        self._writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 204"), answer

    def close(self) -> None:
        self._writer.close()


if __name__ == "__main__":
    main()
