"""Drawing time of a long record: an hour, a day, a week and a month of a topic's river.

Run as `python -m benchmarks.rivers [--quick]`. The record is one of the job's own engine (`benchmarks.history`), of
twenty topics for thirty days. A Chromium on the same machine opens a topic's
page for each window, three times: until its head is painted, until its river stands, and what the process of the page
takes. Prints a table and writes benchmarks/rivers.json.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import click
from selenium.webdriver import Chrome

from benchmarks.history import TopicDay, topic_name, write_history
from benchmarks.page import first_paint, resident_mb, served
from benchmarks.record import machine_now, publish
from tests.web.browser.chromium import chromium

DAYS, TOPICS = 30, 20
WINDOWS = ("1h", "1d", "7d", "30d")


def until_drawn(driver: Chrome, url: str) -> tuple[float, float]:
    """Seconds until the head of the page is painted, and until its river stands."""
    begun = time.monotonic()
    painted = first_paint(driver, url)
    script = "const one = document.querySelector('#river'); return [!!one.querySelector('svg'), one.innerText]"
    while not (drawn := driver.execute_script(script))[0]:
        if time.monotonic() > begun + 60:
            raise SystemExit(f"no river: {drawn[1]}")
        time.sleep(0.01)
    return painted, time.monotonic() - begun


@click.command()
@click.option("--quick", is_flag=True, help="Two days of two topics.")
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    days, topics = (2, 2) if quick else (DAYS, TOPICS)
    report: dict[str, Any] = {"machine": machine_now(), "days": days, "topics": topics}
    with tempfile.TemporaryDirectory() as folder:
        lake = f"{folder}/lake"
        report["rows"] = write_history(lake, TopicDay(24.0 * days, 1).run(), topics)
        with served(folder, lake) as (url, page), chromium(Path(folder)) as driver:
            report["resident_mb"] = resident_mb(page)
            for window in WINDOWS:
                name = topic_name(1)
                draws = [until_drawn(driver, f"{url}/topic?name={name}&last={window}") for _ in range(3)]
                report[window] = {
                    "first_paint_seconds": round(sorted(seconds for seconds, _ in draws)[1], 3),
                    "river_seconds": round(sorted(seconds for _, seconds in draws)[1], 3),
                    "resident_mb": resident_mb(page),
                }
    publish("rivers", report, quick)


if __name__ == "__main__":
    main()
