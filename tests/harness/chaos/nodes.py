"""Controllers as processes, each behind a link to ZooKeeper of its own that can be cut.

Stage: under `tests.harness.chaos.run`, and under the tests of several nodes. A node keeps its port, and so its address,
through all its restarts.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from anabranch.local.broker import free_ports
from anabranch.local.processes import tethered

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "127.0.0.1:1"
"""An address without a broker."""
_CHUNK = 65_536
_LOOK_S = 0.2


class Link:
    """A TCP port that leads to another address until it is cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._cut, self._closed, self._swallow = threading.Event(), threading.Event(), threading.Event()
        self.swallowed = threading.Event()
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def cut(self) -> None:
        """Nothing passes any more, in either direction, and neither end notices: what is sent is lost."""
        self._cut.set()

    def mend(self) -> None:
        """New connections pass again; those that were cut are closed."""
        self._cut.clear()

    def swallow(self) -> None:
        """Close what is open; the next connection is accepted and never answered (`swallowed`), later ones pass."""
        self._swallow.set()

    def close(self) -> None:
        self._closed.set()
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=[client], daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client:
            if self._swallow.is_set():
                self._swallow.clear()
                self.swallowed.set()
                self._closed.wait()
                return
            try:
                while self._cut.is_set():
                    if self._closed.wait(_LOOK_S):
                        return
                with socket.create_connection(self._target, 5) as server:
                    self._pass(client, server)
            except OSError:
                return

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        silent = False
        with selectors.DefaultSelector() as waiting:
            waiting.register(client, selectors.EVENT_READ, (client, server))
            waiting.register(server, selectors.EVENT_READ, (server, client))
            while not self._closed.is_set():
                ready = [key.data for key, _ in waiting.select(_LOOK_S)]
                if (silent and not self._cut.is_set()) or self._swallow.is_set():
                    return
                silent = silent or self._cut.is_set()
                for source, target in ready:
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    if not silent:
                        target.sendall(data)


class Links:
    """A link of its own to each server of an ensemble; all are cut and mended together."""

    def __init__(self, addresses: str) -> None:
        self._links = [Link(address) for address in addresses.split(",")]
        self.address = ",".join(link.address for link in self._links)

    def cut(self) -> None:
        """See `Link`."""
        for link in self._links:
            link.cut()

    def mend(self) -> None:
        """See `Link`."""
        for link in self._links:
            link.mend()

    def close(self) -> None:
        for link in self._links:
            link.close()


class ControllerNode:
    """One controller through all its restarts."""

    def __init__(self, folder: Path, zookeeper: str, chroot: str, settings: str = "", kafka: str = NOWHERE) -> None:
        """`folder` is its own; `zookeeper` one address or several, `chroot` the same for all nodes of a cluster.

        `settings`: more keys of `[controller]`, as TOML; `kafka`: the bootstrap address that it announces to.
        """
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.link = Links(zookeeper)
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = folder / "node.toml"
        self._settings.write_text(
            f'[kafka]\nbootstrap = "{kafka}"\n[controller]\nport = {self.port}\n'
            f'metadata = "zk://{self.link.address}{chroot}"\n{settings}\n'
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self, module: Sequence[str] = ("anabranch",)) -> None:
        """Start the process without waiting until it serves (`wait_until_ready`)."""
        command = [sys.executable, "-m", *module, "--home", str(ROOT), "-c", str(self._settings), "controller"]
        with open(self.folder / "controller.log", "a") as log:
            self.process = subprocess.Popen(
                tethered(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
            )

    def wait_until_ready(self) -> None:
        """Wait for the line that announces readiness.

        Raises `RuntimeError` with the end of the log if the process ends instead.
        """
        assert self.process is not None
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("controller ready at "):
            raise RuntimeError(f"the controller has ended: {(self.folder / 'controller.log').read_text()[-800:]}")

    def kill(self) -> None:
        """kill -9, frozen or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def freeze(self) -> None:
        """SIGSTOP: freezes it, with all its connections."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)

    def is_running(self) -> bool:
        """Return True if the process exists, frozen or not."""
        return self.process is not None and self.process.poll() is None

    def close(self) -> None:
        """End it and its link."""
        self.thaw()
        self.kill()
        self.link.close()
