"""Page over a large fleet: start-up, page times, memory, and delay from a commit to the screen.

Run as `python -m benchmarks.page [--quick]`. Makes a lake of made-up topics in a temporary folder, serves it with
`anabranch serve web`, and commits decisions to it as a busy job and executor would; a Chromium on the same machine
opens its pages, then those of a lake of months, of few topics that split and merge all the time; there the reasons for
an answer (Why) are asked for twice, as the second goes on from a checkpoint of the first. First paint is the
browser's own first-contentful-paint; on the screen is a topic whose decision was committed when its name can be read in
a page that nobody loaded again. Prints a table and writes benchmarks/page.json.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx
import psutil
from selenium.webdriver import Chrome

from benchmarks.history import TEMPLATE, TopicDay, write_history
from benchmarks.record import machine_now, publish
from lake.tables import create_lake
from tests.local.lake import (
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
from tests.web.browser.chromium import chromium

LAYOUT = layout_json((0, 0, 0x3FFF), (1, 0x4000, 0x7FFF), (2, 0x8000, 0xBFFF), (3, 0xC000, 0xFFFF))
GATES = ("merge-window", "split-cooldown", "settling", "merge-consumers")
PATHS = ("/", "/?q=topic-0999", "/?only=hot", "/?gate=settling&page=300", "/?order=name&page=1999")
HISTORY_PATHS = ("/", "/operations", f"/topic?name={quote(TEMPLATE)}", f"/topic?name={quote(TEMPLATE)}&last=30d")
WHY = f"/topic/why?name={quote(TEMPLATE[:-1])}1"
"""Of a topic whose page is not opened: that asks too."""
RIVER = f"/topic/river?name={quote(TEMPLATE)}&last=30d"
AT_ONCE, A_MINUTE = 10_000, 10_000
CHANGES = 20


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
    """Record when the page announces a change."""
    with httpx.stream("GET", f"{url}/live", timeout=60) as live:
        seen += (time.monotonic() for line in live.iter_lines() if line == "event: changed")


def churn(lake: str, names: list[str], url: str, seconds: float) -> Iterator[tuple[float, float]]:
    """Commit for `seconds`; yield, each half second, the seconds of its announcement and of a page."""
    seen: list[float] = []
    threading.Thread(target=follow, args=(url, seen), daemon=True).start()
    count, end = A_MINUTE // 120, time.monotonic() + seconds
    count_so_far = 0
    while time.monotonic() < end:
        begun, now = time.monotonic(), (datetime.now(timezone.utc) - START).total_seconds()
        part = [
            (f"x{count_so_far + number}", name)
            for number, name in enumerate(random.sample(names, min(count, len(names))))
        ]
        count_so_far += count
        inputs = json.dumps({"x": "y" * 3000})
        write(lake, *(decision(now, decision_id=identity, subject=name, inputs=inputs) for identity, name in part))
        write(lake, *(outcome(identity, "applied", now, subject=name) for identity, name in part))
        write(lake, *(load(0, random.random() * 12_000, now, topic=name) for _, name in part))
        done = time.monotonic()
        while not any(seen_at >= done for seen_at in seen) and time.monotonic() < done + 5:
            time.sleep(0.005)
        delay = min((seen_at for seen_at in seen if seen_at >= done), default=done + 5) - done
        asked = time.monotonic()
        httpx.get(f"{url}/?order=acted", timeout=30).raise_for_status()
        yield delay, time.monotonic() - asked
        time.sleep(max(0.0, 0.5 - (time.monotonic() - begun)))


@contextmanager
def served(folder: str, lake: str) -> Iterator[tuple[str, psutil.Process]]:
    """`anabranch serve web` over a lake: its address and its process, once it has read the record."""
    settings = Path(folder) / "settings.toml"
    settings.write_text(f'[lake]\npath = "{lake}"\n')
    command = [sys.executable, "-m", "anabranch", "--home", folder, "-c", str(settings), "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            while "for the first time" in httpx.get(url, timeout=60).text:
                time.sleep(0.2)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()


def first_paint(driver: Chrome, url: str) -> float:
    """Seconds from the beginning of the navigation until the browser has painted something of the page."""
    driver.get(url)
    script = "const one = performance.getEntriesByName('first-contentful-paint')[0]; return one ? one.startTime : null"
    while (milliseconds := driver.execute_script(script)) is None:
        time.sleep(0.01)
    return float(milliseconds) / 1000


def on_screen(driver: Chrome, lake: str, url: str, names: list[str]) -> Iterator[float]:
    """Seconds from the end of a commit until the page shows what it says."""
    driver.get(f"{url}/?order=acted")
    for number, name in enumerate(names):
        now = (datetime.now(timezone.utc) - START).total_seconds()
        write(lake, decision(now, decision_id=f"seen{number}", subject=name))
        done, short = time.monotonic(), name.rpartition("/")[2]
        while not driver.execute_script("return document.body.innerText.includes(arguments[0])", short):
            if time.monotonic() > done + 30:
                raise SystemExit(f"{short} has not come to the screen")
            time.sleep(0.005)
        yield time.monotonic() - done
        time.sleep(0.3)


def of_months(days: int, topics: int) -> dict[str, Any]:
    """First paint, and seconds until all charts are drawn, on a lake that a job has written for `days`."""
    start = int((time.time() - days * 86_400) * 1000)
    with tempfile.TemporaryDirectory() as folder:
        lake = f"{folder}/lake"
        counts = write_history(lake, TopicDay(24.0 * days, 1, start).run(), topics)
        begun = time.monotonic()
        with served(folder, lake) as (url, page), chromium(Path(folder)) as driver:
            known = round(time.monotonic() - begun, 1)
            asked = [round(timed(url + WHY), 3) for _ in range(2)]
            paints = {path: [round(first_paint(driver, url + path), 3) for _ in range(3)] for path in HISTORY_PATHS}
            charts = {path: drawn(driver, url + path) for path in HISTORY_PATHS}
            return {
                "days": days,
                "topics": topics,
                "rows": sum(counts.values()),
                "all_known_seconds": known,
                "resident_mb": resident_mb(page),
                "why_seconds": {"first": asked[0], "again": asked[1]},
                "river_seconds": round(timed(url + RIVER), 3),
                "first_paint_seconds": paints,
                "charts_seconds": charts,
            }


def drawn(driver: Chrome, url: str) -> float | None:
    """Seconds until a page has drawn its charts; None: it takes more than a minute."""
    begun = time.monotonic()
    driver.get(url)
    while driver.execute_script("return document.querySelector('[data-state=asked]')"):
        if time.monotonic() > begun + 60:
            return None
        time.sleep(0.01)
    return round(time.monotonic() - begun, 3)


@click.command()
@click.option("--topics", default=100_000, show_default=True)
@click.option("--days", default=90, show_default=True, help="Of the lake of months.")
@click.option("--quick", is_flag=True, help="2,000 topics for a few seconds, and two days.")
def main(topics: int, days: int, quick: bool) -> None:
    """Measures, prints, writes."""
    topics, seconds = (2_000, 5.0) if quick else (topics, 30.0)
    names = [f"topic://acme/ns{number % 200:03}/topic-{number:06}" for number in range(topics)]
    report: dict[str, Any] = {"machine": machine_now(), "topics": topics}
    with tempfile.TemporaryDirectory() as folder:
        lake = f"{folder}/lake"
        make_fleet(lake, names)
        begun = time.monotonic()
        with served(folder, lake) as (url, page):
            report |= {"all_known_seconds": round(time.monotonic() - begun, 1), "resident_mb": resident_mb(page)}
            report["pages"] = {path: round(min(timed(url + path) for _ in range(3)), 3) for path in PATHS}
            with chromium(Path(folder)) as driver:
                report["first_paint_seconds"] = {
                    path: [round(first_paint(driver, url + path), 3) for _ in range(3)] for path in PATHS
                }
                shown = sorted(on_screen(driver, lake, url, random.sample(names, CHANGES)))
            report["on_screen_seconds"] = {"median": round(shown[CHANGES // 2], 3), "most": round(shown[-1], 3)}
            before, began = page.cpu_times(), time.monotonic()
            delays, pages = zip(*churn(lake, names, url, seconds), strict=True)
            after, took = page.cpu_times(), time.monotonic() - began
            used = (after.user + after.system - before.user - before.system) / took
            report["busy"] = {
                "decisions_a_minute": A_MINUTE,
                "told_seconds": {"median": round(statistics.median(delays), 3), "most": round(max(delays), 3)},
                "page_seconds": {"median": round(statistics.median(pages), 3), "most": round(max(pages), 3)},
                "cores": round(used, 2),
                "resident_mb": resident_mb(page),
            }
    report["months"] = of_months(2 if quick else days, 20)
    publish("page", report, quick)


def resident_mb(process: psutil.Process) -> int:
    """Resident memory of a process, MB."""
    return int(process.memory_info().rss / 1e6)


def timed(url: str) -> float:
    """Seconds of an answer."""
    begun = time.monotonic()
    httpx.get(url, timeout=180).raise_for_status()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
