"""Commits to an object store behind a faulty network: `python -m tests.harness.faulty_store --commits 10000`.

Writers append rows as the executors of different shards do, two to each table, through a proxy that answers a part of
the requests with 503, late, or not at all after they took effect, and that is away for a while. Then each row must be
in its table exactly once; the exit code is 1 otherwise.

In the outage delta-rs (1.6) prints "panicked … buffered.rs … Already shut down": it gives up a failed upload, catches
the panic of that itself, and raises the upload's error. A panic that came through would end its writer, and the run
with 1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from urllib.parse import urlsplit
from urllib.request import urlopen

from deltalake.exceptions import DeltaError

from anabranch.local.processes import tethered
from lake.lease import LeasedTable
from lake.tables import create_table, read_columns
from schemas.tables.rows import DEAD_LETTERS
from tests.lake.object_store import ObjectStore
from tests.local.lake import dead_letter

HOME = Path(__file__).resolve().parents[2]
REFUSED, LOST, SLOW = 0.05, 0.01, 0.01
"""Parts of the requests: 503 without effect; carried out and then cut off; answered late."""
SLOW_SECONDS = 2.0
COUNTS = "/faults"
PROGRAM = (sys.executable, "-m", "tests.harness.faulty_store")


def lake_of(writer: int) -> str:
    """Return the lake of a writer."""
    return f"s3://bucket/lake-{writer // 2}"


class FaultProxy(ThreadingHTTPServer):
    """A proxy in front of an object store."""

    daemon_threads = True

    def __init__(self, store: str, seed: int, outage_after: int, outage_seconds: float) -> None:
        """The outage begins with a request of that number."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store, self.random, self.lock = urlsplit(store).netloc, Random(seed), threading.Lock()
        self.outage_after, self.outage_seconds, self.outage_end = outage_after, outage_seconds, 0.0
        self.counts = Counter[str]()

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that gives a request up closes its connection."""

    def choose_fault(self) -> str:
        """Return what happens to the next request."""
        with self.lock:
            self.counts["requests"] += 1
            if self.counts["requests"] == self.outage_after:
                self.outage_end = time.monotonic() + self.outage_seconds
            draw = self.random.random()
            if time.monotonic() < self.outage_end:
                fault = "away"
            elif draw < REFUSED:
                fault = "refused"
            elif draw < REFUSED + LOST:
                fault = "answer lost"
            else:
                fault = "slow" if draw < REFUSED + LOST + SLOW else ""
            self.counts[fault or "passed on"] += 1
            return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == COUNTS:
            self._answer(200, {}, json.dumps(self.server.counts).encode())
            return
        fault = self.server.choose_fault()
        if fault == "refused":
            self._answer(503, {}, b"")
            return
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        self.close_connection = fault in ("away", "answer lost")
        if fault != "away":
            store = http.client.HTTPConnection(self.server.store, timeout=60)
            store.request(self.command, self.path, body, dict(self.headers))
            answer = store.getresponse()
            content = answer.read()
            store.close()
            if fault != "answer lost":
                self._answer(answer.status, dict(answer.headers), content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def write_rows(writer: int, commits: int) -> None:
    """Commit rows one by one as an executor does, each until it succeeds."""
    failures = 0
    table: LeasedTable | None = None
    for number in range(commits):
        while True:
            try:
                if table is None:
                    table = LeasedTable(
                        lake_of(writer), DEAD_LETTERS, f"writer-{writer}", ("reason",), "writer", "writes"
                    )
                table.append([dead_letter(f"{writer}-{number}", number)])
                break
            except (DeltaError, OSError):
                failures += 1
                time.sleep(0.5)
    print(f"writer {writer}: {commits} commits, {failures} tried again after an error", flush=True)


@contextmanager
def faulty_store(seed: int, outage_after: int = 0, outage_seconds: float = 0.0) -> Iterator[tuple[ObjectStore, str]]:
    """Yield a store and the address of a proxy in front of it; this process's variables lead to the store.

    The outage begins with the request of that number.
    """
    store = ObjectStore()
    os.environ.update(store.environment)
    options = [f"--proxy={store.url}", f"--seed={seed}", f"--after={outage_after}", f"--outage={outage_seconds}"]
    proxy = subprocess.Popen(tethered([*PROGRAM, *options]), cwd=HOME, stdout=subprocess.PIPE, text=True)
    assert proxy.stdout is not None
    try:
        yield store, f"http://127.0.0.1:{int(proxy.stdout.readline())}"
    finally:
        proxy.terminate()
        proxy.wait()
        store.close()


def fault_counts(proxy: str) -> dict[str, int]:
    """Return the number of requests to a proxy, and those of each fault."""
    with urlopen(f"{proxy}{COUNTS}", timeout=60) as answer:
        counts: dict[str, int] = json.load(answer)
    return counts


def run(commits: int, writers: int, seed: int, outage_seconds: float) -> int:
    """Return the number of rows that are lost or doubled; print what happened."""
    # Twelve requests a commit or more: the outage comes before the middle.
    with faulty_store(seed, 5 * commits, outage_seconds) as (store, proxy):
        lakes = sorted({lake_of(writer) for writer in range(writers)})
        for lake in lakes:
            create_table(lake, DEAD_LETTERS)
        begun, each = time.monotonic(), commits // writers
        running = [
            subprocess.Popen(
                tethered([*PROGRAM, f"--writer={number}", f"--commits={each}"]),
                cwd=HOME,
                env={**os.environ, "AWS_ENDPOINT_URL": proxy},
            )
            for number in range(writers)
        ]
        codes = [process.wait() for process in running]
        print(f"{time.monotonic() - begun:.0f} s; {fault_counts(proxy)}")
        statuses = Counter(request.status for request in store.requests() if request.method == "PUT")
        print(f"answers of the store to puts: {dict(statuses)}")
        rows = Counter[str]()
        for lake in lakes:
            rows.update(read_columns(lake, DEAD_LETTERS, ["reason"])["reason"].to_pylist())
    expected = {f"{writer}-{number}" for writer in range(writers) for number in range(each)}
    lost, doubled = expected - rows.keys(), [reason for reason, times in rows.items() if times > 1]
    print(f"{len(rows)} rows of {len(expected)}; lost: {len(lost)}, doubled: {len(doubled)}; exit codes {codes}")
    return len(lost) + len(doubled) + sum(map(abs, codes))


def main() -> None:
    """Run writers, a proxy and a store; or one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outage", type=float, default=600, help="seconds")
    parser.add_argument("--proxy", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.proxy is not None:
        proxy = FaultProxy(chosen.proxy, chosen.seed, chosen.after, chosen.outage)
        print(proxy.server_port, flush=True)
        proxy.serve_forever()
    elif chosen.writer is not None:
        write_rows(chosen.writer, chosen.commits)
    else:
        sys.exit(1 if run(chosen.commits, chosen.writers, chosen.seed, chosen.outage) else 0)


if __name__ == "__main__":
    main()
