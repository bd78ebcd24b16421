"""Fuzzer of the listener over raw sockets: `python -m tests.runtime.listener.fuzz [--kind page] [--minutes N] [--seed
S]`.

A controller or a page is a process of its own. Threads play cases against it: mutated heads, bodies, WebSocket upgrades
and frames, pipelined, cut into pieces, half-closed, reset, unread, with and without a token. Meanwhile a client of
another tenant splits topics, or loads the page, and a probe asks `/healthz`. Fails with the number of the case when
something is answered with 500, is no HTTP or is not answered, the log has a traceback, the process ends or grows, a
probe takes longer than a second, or layouts do not tile. `--only NUMBER` plays one case of the seed again.

Longer than other files: all cases share sockets, clients and judgement.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx

from benchmarks.serving import process_of
from lake.tables import create_lake

THREADS = 8
READ_SECONDS = 0.3
"""That a case waits for an answer; later ones are not judged."""
MAX_GROWTH_BYTES = 300 * 2**20
"""Of the process, from the first minute on; up to 256 connections hold a body of a megabyte."""
KEPT_TOPICS = 100
TOPIC = "/admin/v2/scalable/fuzz/n/t"
CONTROLLER = (
    ("GET", "/healthz"),
    ("GET", "/openapi.json"),
    ("GET", "/admin/v2/brokers"),
    ("GET", "/admin/v2/scalable/fuzz/n"),
    ("GET", f"{TOPIC}/stats"),
    ("GET", f"{TOPIC}/watch"),
    ("GET", f"{TOPIC}/operations?limit=10"),
    ("GET", f"{TOPIC}/consumers"),
    ("PUT", TOPIC),
    ("DELETE", TOPIC),
    ("GET", TOPIC),
    ("POST", f"{TOPIC}/split/0"),
    ("POST", f"{TOPIC}/merge/1/2"),
    ("POST", f"{TOPIC}/rebucket/0"),
    ("POST", f"{TOPIC}/autoScalePolicy"),
    ("GET", f"{TOPIC}/autoScalePolicy/effective"),
    ("PUT", f"{TOPIC}/subscriptions/s"),
    ("POST", f"{TOPIC}/subscriptions/s/seek"),
    ("PUT", f"{TOPIC}/subscriptions/s/consumers/c"),
    ("PUT", "/admin/v2/namespaces/fuzz/m"),
    ("PUT", "/admin/v2/segments/fuzz/n/t/0000-ffff-0"),
    ("GET", "/admin/v2/scalable/victim/n/t0"),
    ("POST", "/admin/v2/scalable/victim/n/t0/split/0"),
    ("DELETE", "/admin/v2/scalable/victim/n/t0"),
)
PAGE = (
    ("GET", "/"),
    ("GET", "/healthz"),
    ("GET", "/topic?name=topic://fuzz/n/t"),
    ("GET", "/topic/river?name=topic://fuzz/n/t"),
    ("GET", "/topic/why?name=topic://fuzz/n/t&at=1"),
    ("GET", "/topic/loads?name=topic://fuzz/n/t"),
    ("GET", "/decision?id=d&policy=a=1"),
    ("POST", "/decision"),
    ("GET", "/operations"),
    ("POST", "/operations"),
    ("GET", "/bundles"),
    ("GET", "/switches"),
    ("GET", "/reports/read?name=a"),
    ("GET", "/live?topic=&since=1&every=1"),
    ("GET", "/sign-in?next=/"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
    ("GET", "/static/htmx.min.js"),
    ("GET", "/topic/consumers?name=topic://fuzz/n/t"),
)
NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 19, b"9" * 4_400, b"0x1", b"1.5", b"null", "\u0663".encode(), b"")
BODIES = (
    b"{}",
    b"[]",
    b"null",
    b'"a"',
    b"[" * 30_000,
    b'{"a":' * 5_000,
    b'{"properties":{"a":"b"}}',
    b'{"a":NaN}',
    b"\xff\xfe",
    b'"\\ud800"',
    b'{"enabled":true,"maxSegments":99999999999999999999}',
    b"token=a&next=/",
    b"kind=pause&subject=*&reason=a&proof=a",
    b"&" * 30_000,
    b"a=%ff&%00=%ud800",
    b"id=d&kind=approve&reason=" + b"\0" * 100,
)
HEADERS = (
    b"Host",
    b"Origin",
    b"Sec-Fetch-Site",
    b"Authorization",
    b"Cookie",
    b"Accept",
    b"Accept-Encoding",
    b"Content-Type",
    b"Range",
    b"If-None-Match",
    b"If-Modified-Since",
    b"If-Range",
    b"Last-Event-ID",
    b"Expect",
    b"Connection",
    b"Upgrade",
    b"Content-Length",
    b"Transfer-Encoding",
    b"HX-Request",
    b"Sec-WebSocket-Key",
    b"Sec-WebSocket-Version",
    b"Sec-WebSocket-Extensions",
    b"Sec-WebSocket-Protocol",
    b"X-Forwarded-For",
    b"X-Forwarded-Proto",
)
UPGRADE = [
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]
PIECES = (
    b" ",
    b"\t",
    b"\\",
    b'"',
    b"%25",
    b"%",
    b",",
    b";",
    b"=",
    b"\0",
    b"\r",
    b"\xff",
    b"[",
    b"bytes=0-,",
    b"a;q=0.1,",
    b"../",
    b"-",
    b":",
    b"1.",
)


@dataclass(frozen=True)
class Target:
    """A process that listens, and what the fuzzer may do there."""

    port: int
    token: str
    """Of role `admin` for the tenant `fuzz`."""
    requests: tuple[tuple[str, str], ...]


@dataclass
class Case:
    """Bytes for one connection, and the manner of sending them."""

    data: bytes
    pieces: int = 1
    pause_seconds: float = 0.0
    end: str = "read"
    """`read`, `half` (closes for writing first), `reset`, or `unread`."""
    faults: list[str] = field(default_factory=list)

    def play(self, port: int) -> None:
        """Send it, and add to `faults` what may not be answered."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as connection:
            size = max(1, -(-len(self.data) // self.pieces))
            connection.settimeout(2)
            for start in range(0, len(self.data), size):
                connection.sendall(self.data[start : start + size])
                # Slow bytes; goes on at once when there is an answer.
                select.select([connection], [], [], self.pause_seconds)
            if self.end == "half":
                connection.shutdown(socket.SHUT_WR)
            if self.end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif self.end != "unread":
                self._judge(_answer(connection))

    def _judge(self, answer: bytes) -> None:
        if answer and not answer.startswith(b"HTTP/1.1 "):
            self.faults.append(f"no HTTP: {answer[:100]!r}")
        if re.match(rb"HTTP/1\.1 50[0-24-9]", answer):
            self.faults.append(f"answered {answer[:200]!r}")


def _answer(connection: socket.socket) -> bytes:
    found, end = b"", time.monotonic() + READ_SECONDS
    while (left := end - time.monotonic()) > 0 and select.select([connection], [], [], left)[0]:
        data = connection.recv(65_536)
        if not data:
            break
        found = (found + data)[:4_096]
    return found


def case_of(target: Target, seed: str) -> Case:
    """Return the case of a seed, the same each time."""
    chance = random.Random(seed)
    count = chance.choice((1, 1, 1, 2, 5, 40))
    data = b"".join(_request(target, chance) for _ in range(count))
    if chance.random() < 0.2:
        data += b"".join(_frame(chance) for _ in range(chance.randint(1, 30)))
    for _ in range(chance.choice((0, 0, 0, 1, 3, 20))):
        place = chance.randrange(len(data))
        data = (
            data[:place]
            + chance.choice((b"", chance.randbytes(2), chance.choice(PIECES)))
            + data[place + chance.randint(0, 2) :]
        )
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data))]
    slow = chance.random() < 0.15
    end = chance.choice(("read", "read", "read", "half", "reset", "unread"))
    return Case(data, chance.randint(2, 30) if slow else chance.choice((1, 1, 2)), 0.01 if slow else 0.0, end)


def _request(target: Target, chance: random.Random) -> bytes:
    verb, path = chance.choice(target.requests)
    verb = (
        verb
        if chance.random() < 0.85
        else chance.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "get", "\t"))
    )
    headers = [(b"Host", b"127.0.0.1:%d" % target.port)]
    if chance.random() < 0.6:
        headers.append((b"Authorization", b"Bearer " + target.token.encode()))
    body = b""
    if verb not in ("GET", "HEAD") or chance.random() < 0.05:
        body = _mutated(chance, chance.choice(BODIES))
        kind = chance.choice((b"application/json", b"application/json", b"application/x-www-form-urlencoded", b"a/b"))
        headers += [
            (b"Content-Type", kind),
            (b"Content-Length", b"%d" % len(body) if chance.random() < 0.9 else chance.choice(NUMBERS)),
        ]
    if chance.random() < (0.7 if path.endswith("/consumers") else 0.05):
        headers += UPGRADE
    for _ in range(chance.choice((0, 0, 1, 1, 3))):
        headers.insert(chance.randrange(len(headers) + 1), (chance.choice(HEADERS), _hostile(chance)))
    target_bytes = _path(chance, path).encode("utf-8", "surrogatepass")
    line = b"%s %s %s" % (verb.encode(), target_bytes, chance.choice((b"HTTP/1.1",) * 9 + (b"HTTP/1.0", b"HTTP/2.0")))
    return b"\r\n".join([line, *(name + b": " + value for name, value in headers), b"", body])


def _path(chance: random.Random, path: str) -> str:
    if chance.random() < 0.6:
        return path
    parts = re.split("([/?=&])", path)
    place = chance.randrange(len(parts))
    parts[place] = chance.choice(
        (
            "%" + "25" * chance.choice((1, 50, 4_000)),
            "..",
            "%2e%2e",
            "",
            "%00",
            "%ff",
            "a" * chance.choice((300, 9_000)),
            "%2F",
            "\u00e9",
            "9" * 4_400,
            "[" * 2_000,
            "{",
            "-1",
            "topic://a/b/c",
            "0x" + "f" * 3_000,
            "%0d%0aX:%20y",
            "victim",
            "1e999",
        )
    )
    return "".join(parts)


def _hostile(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.3:
        return chance.choice(NUMBERS)
    if kind < 0.5:
        return chance.choice(
            (
                b"chunked",
                b"100-continue",
                b"close",
                b"keep-alive, upgrade",
                b"h2c",
                b"https://evil.example",
                b"cross-site",
                b"*/*",
                b"gzip",
            )
        )
    size = chance.choice((1, 30, 2_000, 15_000, 60_000))
    piece = chance.choice(PIECES)
    return (piece * (size // len(piece) + 1))[:size] + chance.choice((b"", b"\0", b"a"))


def _mutated(chance: random.Random, body: bytes) -> bytes:
    if chance.random() < 0.6 or not body:
        return body
    place = chance.randrange(len(body))
    return body[:place] + chance.choice((*NUMBERS, chance.randbytes(3))) + body[place:]


def _frame(chance: random.Random) -> bytes:
    payload = chance.choice((b"", b"{}", b'{"type":"ack"}', b"\xff\xfe", b"a" * 200, b"[" * 5_000))
    first = chance.choice((0x81, 0x81, 0x82, 0x01, 0x00, 0x80, 0x89, 0x8A, 0x88, 0x83, 0xF1))
    length = chance.choice((len(payload), len(payload), 125, 70_000, 2**62))
    masked = 0x80 if chance.random() < 0.9 else 0
    size = bytes([masked | length]) if length < 126 else bytes([masked | 127]) + length.to_bytes(8, "big")
    return bytes([first]) + size + (bytes(4) if masked else b"") + payload


def does_tile(layout: dict[str, object]) -> bool:
    """Tell if the active segments of a layout cover the hash space once."""
    segments: dict[str, dict[str, dict[str, int]]] = layout["segments"]  # type: ignore[assignment]
    ranges = sorted((one["hashRange"]["start"], one["hashRange"]["end"]) for one in segments.values() if one["active"])
    return [start for start, _ in ranges] == [0, *(end + 1 for _, end in ranges[:-1])] and ranges[-1][1] == 65_535


def errors_of(log: str) -> list[str]:
    """Return the errors in a log with the lines below them, up to three."""
    entries = re.split(r"^(?=\d{4}-\d\d-\d\dT)", log, flags=re.MULTILINE)
    return [one[-3_000:] for one in entries if " ERROR " in one or "Traceback" in one][:3]


@contextlib.contextmanager
def served(kind: str, folder: Path) -> Iterator[tuple[Target, httpx.Client, subprocess.Popen[str]]]:
    """A process, what the fuzzer may do there, and a client of the tenant `victim`; its log is `folder/log`."""
    settings = folder / "fuzz.toml"
    settings.write_text(
        f'[kafka]\nbootstrap = "127.0.0.1:1"\n[lake]\npath = "{folder}/lake"\n[web]\nport = 0\n[controller]\nport = 0\n'
        f'database = "{folder}/layouts.db"\ntokens_file = "{folder}/tokens"\n'
    )
    create_lake(str(folder / "lake"))
    base = [sys.executable, "-m", "anabranch", "--home", str(folder), "-c", str(settings)]
    tokens = [
        subprocess.check_output([*base, "token", "new", name, "--role", "admin", "--tenant", name], text=True).strip()
        for name in ("fuzz", "victim")
    ]
    command = " ".join(f"'{word}'" for word in [*base, "controller" if kind == "controller" else "web"])
    with process_of(["bash", "-c", f"exec {command} 2>'{folder}/log'"]) as (process, line):
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        with httpx.Client(base_url=found[0], headers={"Authorization": f"Bearer {tokens[1]}"}, timeout=60) as client:
            yield Target(int(found[1]), tokens[0], CONTROLLER if kind == "controller" else PAGE), client, process


@click.command()
@click.option("--kind", type=click.Choice(["controller", "page"]), default="controller")
@click.option("--minutes", type=float, default=1.0)
@click.option("--seed", type=int, default=None)
@click.option("--probe-seconds", type=float, default=1.0, help="More on a machine that is busy with other work.")
@click.option("--only", type=int, default=None, help="Play this case and no other.")
def main(kind: str, minutes: float, seed: int | None, probe_seconds: float, only: int | None) -> None:
    """Play cases for some minutes."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, served(kind, Path(folder)) as (target, client, process):
        run = Run(target, client, seed, time.monotonic() + minutes * 60, probe_seconds)
        if only is not None:
            case = case_of(target, f"{seed}/{only}")
            case.play(target.port)
            print(case, run.split(0) if kind == "controller" else run.load(0))
        else:
            print(run.play(process.pid, run.split if kind == "controller" else run.load))
        run.faults += errors_of((Path(folder) / "log").read_text())
        run.faults += ["the process has ended"] if process.poll() is not None else []
    sys.exit("\n".join(run.faults) or 0)


@dataclass
class Run:
    """Cases of one seed against a process, beside a client that is at work."""

    target: Target
    client: httpx.Client
    seed: int
    end: float
    probe_seconds: float
    faults: list[str] = field(default_factory=list)
    played: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def play(self, pid: int, work: Callable[[int], str]) -> str:
        """Play them until the end, or the first faults; return the counts."""
        threads = [threading.Thread(target=self._cases, args=[number]) for number in range(THREADS)]
        threads += [threading.Thread(target=self._probe)]
        first, number, slowest = 0, 0, 0.0
        for one in threads:
            one.start()
        while time.monotonic() < self.end and len(self.faults) < 5:
            began = time.monotonic()
            try:
                fault = work(number)
            except httpx.HTTPError as error:
                fault = f"a client with a token: {error!r}"
            slowest = max(slowest, time.monotonic() - began)
            self.faults += [fault] if fault else []
            number += 1
            memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            first = first if number > 50 else memory
            self.faults += (
                [f"{memory >> 20} MiB of memory, {first >> 20} before"] if memory - first > MAX_GROWTH_BYTES else []
            )
        self.end = 0
        self.over.set()
        for one in threads:
            one.join()
        return f"{self.played} cases; {number} calls of the other client, the slowest {slowest:.2f} s"

    def split(self, number: int) -> str:
        """Create a topic, split it, delete an older one; return the fault."""
        path = f"/admin/v2/scalable/victim/n/t{number}"
        for verb, one in (("PUT", path), ("POST", f"{path}/split/0")):
            answer = self.client.request(verb, one)
            if not answer.is_success:
                return f"{verb} {one}: {answer.status_code} {answer.text[:200]}"
        layout = self.client.get(path).json()
        # Memory would grow with topics: those that have been split need a leader until their parents are pruned.
        self.client.delete(f"/admin/v2/scalable/victim/n/t{number - KEPT_TOPICS}")
        return "" if does_tile(layout) else f"{path} does not tile"

    def load(self, number: int) -> str:
        """Load the page; return the fault."""
        answer = self.client.get(("/", "/operations", "/sign-in")[number % 3])
        return "" if answer.status_code == 200 else f"{answer.url}: {answer.status_code} {answer.text[:200]}"

    def _cases(self, first: int) -> None:
        for number in range(first, 10**9, THREADS):
            if time.monotonic() > self.end:
                return
            case = case_of(self.target, f"{self.seed}/{number}")
            case.play(self.target.port)
            self.played += 1
            self.faults += [f"case {number}: {fault}" for fault in case.faults]

    def _probe(self) -> None:
        while time.monotonic() < self.end:
            began, answer = time.monotonic(), b""
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.target.port), 30, ("127.0.0.9", 0)) as connection,
            ):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = connection.recv(64)
            if not answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")):
                self.faults.append(f"a probe was answered {answer!r}")
            elif time.monotonic() - began > self.probe_seconds:
                self.faults.append(f"a probe took {time.monotonic() - began:.2f} s")
            self.over.wait(0.2)


if __name__ == "__main__":
    main()
