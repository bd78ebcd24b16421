"""Each process of a real run is stopped in turn: every page that is open shows it, without being loaded again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome

from anabranch.local.processes import session_members
from tests.local.running import Run, end
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.browser,
    pytest.mark.local_run,
    pytest.mark.broker,
    pytest.mark.timeout(900),
]

SHOWN_WITHIN_S = 15
TOPIC = quote("topic://acme/shop/orders", safe="")
PATHS = ("/", f"/topic?name={TOPIC}", "/operations", "/bundles", "/switches", "/reports")
SHOWN = {
    "job": "job no answer for ",
    "executor": "executor 1 at work, no answer for ",
    "controller": "controller no answer for ",
    "collector": "collector no answer for ",
    "kafka": "Kafka does not answer the job",
    "page": "The server of this page has not answered since ",
}
"""What is shown at the top of a page while a part is stopped."""
READ = "return document.querySelector('#standing')?.innerText ?? ''"
IS_WELL = """
    const lines = [...document.querySelectorAll("#standing li")];
    return lines.length === 6 && lines.every(one => one.className === "good");
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path, "--demand", "clients", base="clients", settings="[web]\nport = 0\n")
    try:
        wait_until(lambda: "running; logs in" in started.output or started.process.poll() is not None, 240, every_s=0.2)
        assert started.process.poll() is None, started.output[-3000:]
        yield started
    finally:
        end(started)


@pytest.fixture
def windows(run: Run, browser: Chrome) -> Iterator[list[str]]:
    """A window for each page."""
    first, opened = browser.current_window_handle, []
    (address,) = re.findall(r"to look at: (\S+)", run.output)
    try:
        for path in PATHS:
            browser.switch_to.new_window("window")
            opened.append(browser.current_window_handle)
            browser.get(address + path)
            browser.execute_script("window.same = true")
        yield opened
    finally:
        for window in opened:
            browser.switch_to.window(window)
            browser.close()
        browser.switch_to.window(first)


def test_every_open_page_shows_within_15_s_which_process_was_stopped(run, browser, windows):
    def shown(script: str, window: str) -> object:
        browser.switch_to.window(window)
        assert browser.execute_script("return window.same") is True
        return browser.execute_script(script)

    late = {}
    for part, words in SHOWN.items():
        for window in windows:
            wait_until(lambda window=window: shown(IS_WELL, window), 300, every_s=0.2)
        session, waiting = run.sessions()[part], dict(zip(windows, PATHS, strict=True))
        for pid in session_members(session):
            os.kill(pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            while waiting and time.monotonic() < stopped_at + 60:
                for window in [window for window in waiting if words in str(shown(READ, window))]:
                    seconds, path = time.monotonic() - stopped_at, waiting.pop(window)
                    if seconds > SHOWN_WITHIN_S:
                        late[part, path] = seconds
                time.sleep(0.05)
            late |= {(part, path): "never" for path in waiting.values()}
        finally:
            for pid in session_members(session):
                os.kill(pid, signal.SIGCONT)
    assert late == {}
