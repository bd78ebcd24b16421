"""The browser, and the page as a process over a lake that a test has written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from selenium.webdriver import Chrome

from tests.streaming.jobs import HOME
from tests.waiting import wait_until
from tests.web.browser.chromium import Look, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@contextmanager
def served(folder: Path, lake: str, *lines: str) -> Iterator[tuple[str, psutil.Process]]:
    """`anabranch serve web` over a lake, in a process of its own; `lines` are of [web]. Yields address and process."""
    own = folder / "web.toml"
    own.write_text("\n".join([f'[lake]\npath = "{lake}"', "[web]", "port = 0", *lines, ""]))
    with open(folder / "web.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "anabranch", "--config", str(own), "web"], cwd=HOME, stdout=log, stderr=log
        )
        try:
            wait_until(lambda: "ready at" in (folder / "web.log").read_text() or process.poll() is not None, 60)
            said = (folder / "web.log").read_text()
            assert "ready at" in said, said
            yield said.split("ready at ")[1].split()[0], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture
def look(browser: Chrome, tmp_path: Path) -> Iterator[Callable[..., Look]]:
    """Opens the browser on `anabranch serve web` over a lake."""
    with ExitStack() as stack:
        yield lambda lake, *lines: Look(browser, *stack.enter_context(served(tmp_path, lake, *lines)))
        # A page that is left open asks for a server that is gone, and says so to the next test.
        browser.get("about:blank")
        browser.get_log("browser")
