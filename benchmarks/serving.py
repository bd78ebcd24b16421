"""Controllers as processes of their own, calls to them, and the floor that calls are compared with."""

import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import httpx

CALLERS = 4
BATCH = 100
"""Calls between two looks at the floor."""
NAMESPACE = "/admin/v2/scalable/acme/shop"


class Floor(Protocol):
    """The minimum cost of a change on the same machine."""

    def commit(self, times: int) -> None:
        """This many durable changes, one after the other."""


@contextmanager
def controller(settings: Path, first: str = f"{NAMESPACE}?property=no=one") -> Iterator[tuple[str, int, float]]:
    """A controller process: its URL, its id, and the seconds from its start to its first answer."""
    began = time.perf_counter()
    with process_of([sys.executable, "-m", "anabranch", "-c", str(settings), "controller"]) as (process, line):
        url = line.rpartition(" ")[2]
        assert httpx.get(url + first, timeout=60).status_code in (200, 401, 404)
        yield url, process.pid, time.perf_counter() - began


@contextmanager
def process_of(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs meanwhile, and the first line that it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANABRANCH_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def call_all(url: str, calls: list[tuple[str, str]]) -> None:
    """All calls, several at a time."""
    with httpx.Client(base_url=url) as client, ThreadPoolExecutor(CALLERS) as pool:
        for _ in pool.map(lambda call: client.request(*call), calls):
            pass


def rates(url: str, floor: Floor, calls: list[tuple[str, str]]) -> dict[str, float]:
    """Return calls per second for one and for several callers, and commits per second of the floor.

    Medians of interleaved batches.
    """
    by_kind: dict[str, list[float]] = {"one_caller": [], "four_callers": [], "floor": []}
    batch = max(10, min(BATCH, len(calls) // 6))
    with (
        httpx.Client(base_url=url, limits=httpx.Limits(max_keepalive_connections=CALLERS)) as client,
        ThreadPoolExecutor(CALLERS) as pool,
    ):

        def call(request: tuple[str, str]) -> None:
            answer = client.request(*request)
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
            by_kind["four_callers" if number % 2 else "one_caller"].append(len(chosen) / (called - began))
            by_kind["floor"].append(len(chosen) / (ended - called))
    return {name: round(statistics.median(each), 1) for name, each in by_kind.items()}


class SqliteFloor:
    """One row a transaction, as durable as the controller's: what SQLite and the disk allow."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE rows (value TEXT)")

    def commit(self, times: int) -> None:
        """See `Floor`."""
        for _ in range(times):
            self._db.execute("INSERT INTO rows VALUES (?)", ("x" * 300,))
