"""Two clients of one controller: what the splits of one take while the other calls as fast as it can.

Neighbour: `benchmarks.controller`. `python -m benchmarks.neighbours URL TOKEN KIND NAME` is the second client: many
connections, each with its next call as soon as the last is answered, in a process of its own.
"""

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from anabranch.auth.tokens import add_token
from benchmarks.serving import NAMESPACE, controller, process_of

CONNECTIONS = 16
"""Of the client at full speed."""
KINDS = ("reads", "changes", "registrations", "watching", "refused")
"""What the client at full speed does; `refused`: it has no token."""
ROUNDS = 6
SPLITS = 12
"""Splits that are timed in each half of a round."""


def measure_neighbours(work: Path, settings: Path) -> list[dict[str, Any]]:
    """Measure a quiet client's split, alone and beside a busy client, in milliseconds, in turns.

    One row for each kind of calls of the busy client.
    """
    tokens = work / "tokens"
    quiet, busy = (add_token(tokens, name, "admin") for name in ("quiet", "busy"))
    file = work / "neighbours.toml"
    text = settings.read_text().replace("layouts.db", "neighbours.db")
    file.write_text(f'{text}tokens_file = "{tokens}"\n')
    rows = []
    with (
        controller(file) as (url, _, _),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {quiet}"}, timeout=60) as client,
    ):
        assert client.put(f"{NAMESPACE}/crowded").status_code == 204
        for kind in KINDS:
            path = f"{NAMESPACE}/quiet-{kind}"
            assert client.put(path).status_code == 204
            numbers = itertools.count()
            alone: list[float] = []
            beside: list[float] = []
            for number in range(ROUNDS):
                alone += _splits(client, path, numbers)
                command = [sys.executable, "-m", "benchmarks.neighbours", url, busy, kind, f"{kind}-{number}"]
                with process_of(command) as (_, line):
                    assert line == "at full speed", line
                    beside += _splits(client, path, numbers)
            rows.append(
                {
                    "busy_with": kind,
                    "alone_p50_ms": round(statistics.median(alone), 1),
                    "beside_p50_ms": round(statistics.median(beside), 1),
                    "alone_p90_ms": round(statistics.quantiles(alone, n=10)[-1], 1),
                    "beside_p90_ms": round(statistics.quantiles(beside, n=10)[-1], 1),
                    "times": round(statistics.median(beside) / statistics.median(alone), 2),
                }
            )
    return rows


def _splits(client: httpx.Client, path: str, numbers: Iterator[int]) -> list[float]:
    """Milliseconds of each split; every segment of a topic is split once, in the order of their ids."""
    took = []
    for _ in range(SPLITS):
        number = next(numbers)
        began = time.perf_counter()
        answer = client.post(f"{path}/split/{number}")
        took.append(1000 * (time.perf_counter() - began))
        assert answer.status_code == 204, answer.text
    return took


async def call_for_ever(url: str, token: str, kind: str, name: str) -> None:
    """Calls over all connections until the process is ended; says so when it is under way."""
    address = httpx.URL(url)
    calls = _calls(kind, name)
    authorization = "" if kind == "refused" else f"Authorization: Bearer {token}\r\n"
    under_way = asyncio.Event()

    async def call() -> None:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for number, (verb, path) in enumerate(calls):
            writer.write(
                f"{verb} {path} HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: 0\r\n{authorization}\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if kind == "watching":
                writer.close()
                reader, writer = await asyncio.open_connection(address.host, address.port)
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:") and kind != "watching":
                    await reader.readexactly(int(line.partition(b":")[2]))
            if b"connection: close" in head.lower():
                reader, writer = await asyncio.open_connection(address.host, address.port)
            if number >= 3:
                under_way.set()

    tasks = [asyncio.create_task(call()) for _ in range(CONNECTIONS)]
    await under_way.wait()
    print("at full speed", flush=True)
    await asyncio.gather(*tasks)


def _calls(kind: str, name: str) -> Iterator[tuple[str, str]]:
    for number in itertools.count():
        topic = f"{NAMESPACE}/{name}-{number}"
        if kind in ("reads", "refused"):
            yield "GET", f"{NAMESPACE}/crowded"
        elif kind == "watching":
            yield "GET", f"{NAMESPACE}/crowded/watch"
        elif kind == "registrations":
            yield "PUT", f"{NAMESPACE}/crowded/subscriptions/s/consumers/{name}-{number}"
        else:
            yield "PUT", topic
            yield "POST", f"{topic}/split/0"


if __name__ == "__main__":
    asyncio.run(call_for_ever(*sys.argv[1:]))
