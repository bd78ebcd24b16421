"""The page of a whole local run: what is done by REST appears, and what is approved on the page is done."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.streaming.jobs import HOME
from tests.waiting import wait_until
from tests.web.browser.chromium import Look

pytestmark = [
    pytest.mark.soak,
    pytest.mark.browser,
    pytest.mark.local_run,
    pytest.mark.broker,
    pytest.mark.timeout(600),
]

TOPIC, BUSY = "topic://acme/shop/by-hand", "topic://acme/shop/orders"


class Run:
    """A local run whose executor waits for approvals."""

    def __init__(self, folder: Path) -> None:
        self.own, self.log = folder / "own.toml", folder / "out.log"
        self.own.write_text(
            f'[lake]\npath = "{folder}/lake"\n[stream]\ncheckpoint = "{folder}/checkpoint"\n'
            f'[controller]\ndatabase = "{folder}/controller.db"\n[local]\nfolder = "{folder}"\n'
            '[executor]\nmode = "approve"\n[web]\nport = 0\n'
        )
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command("run", "--local", "--no-screen"),
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def command(self, *words: str) -> list[str]:
        # Written by the run: where its parts are.
        run_file = self.own.parent / "run.toml"
        more = ["--config", str(run_file)] if run_file.exists() else []
        demonstration = ["--config", "conf/demonstration.toml", "--config", str(self.own)]
        return [sys.executable, "-m", "anabranch", *demonstration, *more, *words]

    def asked(self, *words: str) -> str:
        """What a command of the same settings prints."""
        done = subprocess.run(self.command(*words), cwd=HOME, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(self) -> str:
        """Address of the page, once all parts are at work."""
        found = re.search(r"to look at: (\S+)(?s:.*)running; logs in", self.log.read_text())
        return found.group(1) if found else ""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path)
    try:
        wait_until(lambda: found.page() or found.process.poll() is not None, 180, every_s=0.2)
        assert found.page(), found.log.read_text()[-3000:]
        yield found
    finally:
        found.process.send_signal(signal.SIGINT)
        found.process.wait(180)


def test_rest_split_and_page_approval_take_effect(run, browser):
    page = Look(browser, run.page())
    run.asked("topics", "create", TOPIC, "--segments", "2")
    page.open(f"/topic?name={quote(TOPIC, safe='')}")
    page.until("2 segments", "#now")
    run.asked("topics", "split", TOPIC, "0")
    page.until("3 segments", "#now")
    assert page.said() == []

    summary = "section[aria-labelledby=consumers] summary"

    def has_consumers() -> bool:
        page.open(f"/topic?name={quote(BUSY, safe='')}")
        return bool(page.all(summary))

    wait_until(has_consumers, 60, every_s=0.5)
    page.find(summary).click()
    page.until("consumers", "section[aria-labelledby=consumers] details caption")
    assert page.faults() == []

    page.open("/operations")
    # In one step: a refresh may replace the link between two.
    link = """return document.querySelector("#operations a[href*='/decision']")?.href"""
    address = wait_until(lambda: page.driver.execute_script(link), 120, every_s=0.2)
    page.driver.get(address)
    identity = address.rpartition("=")[2]
    page.find("#reason").send_keys("looks right")
    page.find("button[value=approve]").click()

    def end() -> str:
        sql = f"SELECT status FROM decision_outcomes WHERE decision_id = '{identity}'"
        status: str = json.loads(run.asked("sql", "--output", "json", sql).splitlines()[0])["status"]
        return status

    wait_until(lambda: end() == "applied", 60, every_s=0.5)
    page.driver.get(address)
    page.until("applied")
    assert page.said() == []
