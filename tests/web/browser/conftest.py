"""The browser, and the page as a process over a lake that a test has written."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from unittest.mock import patch

import psutil
import pytest
from selenium.webdriver import Chrome

from anabranch.web.server import serve
from runtime.listener.server import Listener, Server
from schemas.settings.root import load_settings
from streaming.job.policy import configured_policy, stored_policy
from tests.streaming.jobs import HOME
from tests.waiting import wait_until
from tests.web.browser.chromium import Look, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


def settings_of(folder: Path, lake: str, *lines: str) -> Path:
    """Write settings of a page over a lake; `lines` are of [web]."""
    file = folder / "web.toml"
    file.write_text("\n".join([f'[lake]\npath = "{lake}"', "[web]", "port = 0", *lines, ""]))
    return file


@contextmanager
def served_here(folder: Path, lake: str, *lines: str) -> Iterator[str]:
    """Serve the page from this process, which need not import everything again; yields its address."""
    settings = load_settings([settings_of(folder, lake, *lines)])
    address, servers, failures = Queue[str](), list[Server](), list[BaseException]()

    def serve_page() -> None:
        try:
            serve(settings, lambda: stored_policy(configured_policy(settings)), address.put)
        except BaseException as error:
            failures.append(error)
            address.put("")

    def serve_unsignalled(server: Server, listener: Listener) -> None:
        servers.append(server)
        server.run(sockets=[listener.socket])

    with patch.object(Server, "serve_until_signalled", serve_unsignalled):
        thread = threading.Thread(target=serve_page)
        thread.start()
        try:
            url = address.get(timeout=60)
            assert url, failures
            yield url
        finally:
            for server in servers:
                server.stop()
            thread.join(20)
            assert not thread.is_alive()


@contextmanager
def served(folder: Path, lake: str, *lines: str) -> Iterator[tuple[str, psutil.Process]]:
    """`anabranch serve web` over a lake, in a process of its own; `lines` are of [web]. Yields address and process."""
    own = settings_of(folder, lake, *lines)
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
    """Opens the browser on the page over a lake."""
    with ExitStack() as stack:
        yield lambda lake, *lines: Look(browser, stack.enter_context(served_here(tmp_path, lake, *lines)))
        # A page that is left open asks for a server that is gone, and says so to the next test.
        browser.get("about:blank")
        browser.get_log("browser")
