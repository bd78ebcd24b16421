"""The page over a large fleet: until all topics are known, page times, memory, and how soon a commit is told.

`python -m benchmarks.page` makes a lake of made-up topics in a temporary folder, serves it with `anabranch web`, and
commits decisions to it as a busy job and executor would.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import click
import httpx
import psutil

from lake.tables import create_lake
from tests.lab.lake import (
    START,
    consumer_event,
    decision,
    hold,
    layout_event,
    layout_json,
    load,
    outcome,
    policy_event,
    write,
)

LAYOUT = layout_json((0, 0, 0x3FFF), (1, 0x4000, 0x7FFF), (2, 0x8000, 0xBFFF), (3, 0xC000, 0xFFFF))
GATES = ("merge-window", "split-cooldown", "settling", "merge-consumers")
PATHS = ("/", "/?q=topic-0999", "/?only=hot", "/?gate=settling&page=300", "/?order=name&page=1999")
AT_ONCE, A_MINUTE = 10_000, 10_000


def make_fleet(lake: str, names: list[str]) -> None:
    """Layouts, loads, holds and consumers of all topics."""
    create_lake(lake)
    write(lake, policy_event(0))
    for first in range(0, len(names), AT_ONCE):
        part = list(enumerate(names[first : first + AT_ONCE], first))
        seconds = 1 + first / AT_ONCE
        write(lake, *(layout_event(LAYOUT, seconds, topic=name) for _, name in part))
        write(
            lake, *(load(s, number * 7919 % 9000 * 1.2, seconds, topic=name) for number, name in part for s in range(4))
        )
        write(lake, *(hold(seconds, GATES[number % 4], subject=name) for number, name in part))
        write(lake, *(consumer_event("billing", 1 + number % 5, seconds, topic=name) for number, name in part))


def follow(url: str, seen: list[float]) -> None:
    """When the page was told of a change."""
    with httpx.stream("GET", f"{url}/live", timeout=60) as live:
        seen += (time.monotonic() for line in live.iter_lines() if line == "event: changed")


def churn(lake: str, names: list[str], url: str, seconds: float) -> Iterator[tuple[float, float]]:
    """Decisions, outcomes and loads; of each half second, how soon its commit was told, and how long a page took."""
    seen: list[float] = []
    threading.Thread(target=follow, args=(url, seen), daemon=True).start()
    count, end = A_MINUTE // 120, time.monotonic() + seconds
    made = 0
    while time.monotonic() < end:
        begun, now = time.monotonic(), (datetime.now(timezone.utc) - START).total_seconds()
        part = [(f"x{made + number}", name) for number, name in enumerate(random.sample(names, min(count, len(names))))]
        made += count
        inputs = json.dumps({"x": "y" * 3000})
        write(lake, *(decision(now, decision_id=one, subject=name, inputs=inputs) for one, name in part))
        write(lake, *(outcome(one, "applied", now, subject=name) for one, name in part))
        write(lake, *(load(0, random.random() * 12_000, now, topic=name) for _, name in part))
        done = time.monotonic()
        while not any(at >= done for at in seen) and time.monotonic() < done + 5:
            time.sleep(0.005)
        told = min((at for at in seen if at >= done), default=done + 5) - done
        asked = time.monotonic()
        httpx.get(f"{url}/?order=acted", timeout=30).raise_for_status()
        yield told, time.monotonic() - asked
        time.sleep(max(0.0, 0.5 - (time.monotonic() - begun)))


@click.command()
@click.option("--topics", default=100_000, show_default=True)
@click.option("--quick", is_flag=True, help="2,000 topics for a few seconds.")
def main(topics: int, quick: bool) -> None:
    """Prints a table."""
    topics, seconds = (2_000, 5.0) if quick else (topics, 30.0)
    names = [f"topic://acme/ns{number % 200:03}/topic-{number:06}" for number in range(topics)]
    with tempfile.TemporaryDirectory() as folder:
        lake = f"{folder}/lake"
        make_fleet(lake, names)
        settings = Path(folder) / "settings.toml"
        settings.write_text(f'[lake]\npath = "{lake}"\n')
        command = [sys.executable, "-m", "anabranch.cli", "--home", folder, "-c", str(settings), "web", "--port", "0"]
        begun = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().split()[-1]
                while "for the first time" in httpx.get(url, timeout=60).text:
                    time.sleep(0.2)
                page = psutil.Process(process.pid)
                print(f"{topics:,} topics, {psutil.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB")
                print(f"all known after {time.monotonic() - begun:.1f} s, {page.memory_info().rss / 1e6:.0f} MB")
                for path in PATHS:
                    print(f"{path:<28} {min(timed(url + path) for _ in range(3)):.3f} s")
                before, at = page.cpu_times(), time.monotonic()
                told, pages = zip(*churn(lake, names, url, seconds), strict=True)
                after, took = page.cpu_times(), time.monotonic() - at
                used = (after.user + after.system - before.user - before.system) / took
                print(
                    f"{A_MINUTE:,} decisions a minute: a commit is told after {statistics.median(told):.3f} s, at most "
                    f"{max(told):.3f} s; a page takes {statistics.median(pages):.3f} s, at most {max(pages):.3f} s; "
                    f"{used:.0%} of a core, {page.memory_info().rss / 1e6:.0f} MB"
                )
            finally:
                process.terminate()


def timed(url: str) -> float:
    """Seconds of an answer."""
    begun = time.monotonic()
    httpx.get(url, timeout=60).raise_for_status()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
