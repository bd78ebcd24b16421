"""A client with a token beside anonymous ones: its splits, and `/healthz`, while they do their worst.

Run as `python -m benchmarks.anonymous [--quick]`. A controller with tokens on SQLite is a process of its own, the
attackers another one: silent connections, 60 kB cookies, percent-encoding bombs with the weakest token, pipelined
requests whose answers nobody reads, and refused requests at full speed; from one address, which is not the client's,
and from 200. What is closed connects again at once. The client splits topics over one connection; a probe asks
`/healthz` over a new one each time.

Prints a table and writes benchmarks/anonymous.json. The p99 of a split is to stay within twice its value without them,
and every probe is to be answered within a second. The idle splits are measured in turns with the others and counted
together, as the p99 of 200 splits is the third slowest of them, and varies by half. On a machine with two cores the
attackers also take processor time from the client and from the controller; `attackers_cores` says how much.
"""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.processes import process_seconds
from benchmarks.record import machine_now, print_row, publish, quick_command
from benchmarks.serving import NAMESPACE, process_of

KINDS = ("silent", "cookies", "percent", "unread", "refused")
SOURCES = (1, 200)
SPLITS = 200
"""Of one measurement."""
SETTLE_SECONDS = 3.0
UNANSWERED_SECONDS = 30.0


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    splits = SPLITS // 4 if quick else SPLITS
    report: dict[str, Any] = {"machine": machine_now(), "splits": splits, "idle": {}, "beside": {}}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        settings = work / "bench.toml"
        settings.write_text(
            f'[kafka]\nbootstrap = "127.0.0.1:1"\n[controller]\nport = 0\ndatabase = "{work}/layouts.db"\n'
            f'tokens_file = "{work}/tokens"\n'
        )
        base = [sys.executable, "-m", "anabranch", "-c", str(settings), "--log-level", "error"]
        admin, weak = (
            _token(base, "admin", "--role", "admin"),
            _token(base, "weak", "--role", "read", "--tenant", "none"),
        )
        with process_of([*base, "controller"]) as (_, line):
            url = line.rpartition(" ")[2]
            client = _Client(url, admin)
            client.measure(splits // 4)
            idle = SplitTimes()
            for kind in KINDS:
                for sources in SOURCES:
                    idle.add(client.measure(splits))
                    with attackers(kind, url, sources, weak) as attack:
                        time.sleep(SETTLE_SECONDS)
                        before, began = process_seconds(attack), time.perf_counter()
                        beside = client.measure(splits)
                        cores = (process_seconds(attack) - before) / (time.perf_counter() - began)
                    row = {**beside.figures(), "attackers_cores": round(cores, 2)}
                    report["beside"][f"{kind}, {sources}"] = row
                    print_row({f"{kind}, {sources}": row})
            report["idle"] = idle.figures()
    publish("anonymous", report, quick)


@dataclass
class SplitTimes:
    """Milliseconds of splits, and seconds of probes."""

    splits: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)

    def add(self, more: "SplitTimes") -> None:
        """Count further splits and probes."""
        self.splits += more.splits
        self.probes += more.probes

    def figures(self) -> dict[str, float]:
        """Return what goes on record."""
        splits = sorted(self.splits)
        return {
            "p50_ms": round(splits[len(splits) // 2], 1),
            "p99_ms": round(splits[int(len(splits) * 0.99) - 1], 1),
            "probes": len(self.probes),
            "slowest_probe_s": round(max(self.probes), 3),
        }


class _Client:
    """Splits topics, each once, and probes meanwhile."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        self._topics = 0

    def measure(self, splits: int) -> SplitTimes:
        """Create so many topics, then split each."""
        first, self._topics = self._topics, self._topics + splits
        paths = [f"{NAMESPACE}/t{number}" for number in range(first, self._topics)]
        for path in paths:
            self._client.put(path).raise_for_status()
        stop, probes = threading.Event(), list[float]()
        prober = threading.Thread(target=self._probe, args=(stop, probes))
        prober.start()
        measured = SplitTimes(probes=probes)
        for path in paths:
            began = time.perf_counter()
            self._client.post(f"{path}/split/0").raise_for_status()
            measured.splits.append((time.perf_counter() - began) * 1000)
        stop.set()
        prober.join()
        return measured

    def _probe(self, stop: threading.Event, probes: list[float]) -> None:
        address = urlsplit(self._url)
        while not stop.wait(0.1):
            began = time.perf_counter()
            is_answered = False
            with suppress(OSError), socket.create_connection((address.hostname, address.port), 30) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                # Without a broker the answer is 503.
                is_answered = probe.recv(64).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
            # A connection that is refused or closed without an answer counts as one that is never answered.
            probes.append(time.perf_counter() - began if is_answered else UNANSWERED_SECONDS)


@contextmanager
def attackers(kind: str, url: str, sources: int, token: str) -> Iterator[int]:
    """They are at it meanwhile; yields the id of their process."""
    command = [sys.executable, "-m", "benchmarks.anonymous_attack", kind, str(urlsplit(url).port), str(sources), token]
    with subprocess.Popen(command) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _token(base: list[str], name: str, *more: str) -> str:
    done = subprocess.run([*base, "token", "new", name, *more], check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
