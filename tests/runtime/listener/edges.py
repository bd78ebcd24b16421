"""Controller, page and metrics, each in this process behind the listener, for tests of anonymous clients."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from anabranch.auth.callers import Access
from anabranch.auth.tokens import add_token
from anabranch.web.app import create_app
from lake.tables import create_lake
from runtime.listener.connections import ListenerLimits
from runtime.listener.names import NodeNames
from runtime.listener.server import Server, listen
from runtime.telemetry.serving import metrics_app
from tests.controller.conftest import run_controller
from tests.engine.buckets import CONFIGURED
from tests.waiting import wait_until

SECONDS = 10.0
"""After which a test gives up on a connection."""
TOPIC = "/admin/v2/scalable/a/b/t"


@dataclass
class Edge:
    """A process that listens."""

    kind: str
    port: int
    server: Server
    limits: ListenerLimits
    path: str
    """Of a read that succeeds: with the token where there are tokens."""
    token: str = ""
    post: str = ""
    """Of a write that takes a body; empty: there is none."""

    def open(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SECONDS, (source, 0))

    def head(self, path: str = "", verb: str = "GET", more: bytes = b"") -> bytes:
        """A head with the token, up to where further headers may follow."""
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"{verb} {path or self.path} HTTP/1.1\r\nHost: localhost\r\n{token}".encode() + more

    def ask(self, path: str = "", source: str = "127.0.0.1", with_token: bool = True) -> int:
        """The status of one read over a connection of its own; 0: it was closed."""
        head = self.head(path) if with_token else f"GET {path or self.path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        try:
            with self.open(source) as connection:
                connection.sendall(head + b"Connection: close\r\n\r\n")
                said = connection.recv(64)
        except OSError:
            return 0
        return int(said.split()[1]) if said.startswith(b"HTTP/1.1 ") else 0


@contextmanager
def running(kind: str, folder: Path, **bounds: Any) -> Iterator[Edge]:
    """One of them, with tokens but for the metrics, and these bounds."""
    limits = ListenerLimits(**{"connections": 4096, "connections_per_address": 256, **bounds})
    if kind == "controller":
        token = add_token(folder / "tokens", "ann", "admin")
        with run_controller(folder / "layouts.db", tokens_file=folder / "tokens", connections=limits) as one:
            one.service.create_topic("topic://a/b/t", 1, {})
            port = one.client.base_url.port
            assert port is not None
            yield Edge(kind, port, one.server, limits, TOPIC, token, f"{TOPIC}/split/0")
    elif kind == "page":
        lake = str(folder / "lake")
        create_lake(lake)
        token = add_token(folder / "tokens", "ann", "operate")
        app = create_app(
            lake,
            Access(folder / "tokens"),
            NodeNames("127.0.0.1", called="web"),
            lambda: CONFIGURED,
            max_head_bytes=limits.head_bytes,
        )
        with served(app, limits, app.state.fleet.stop) as (server, port):
            yield Edge(kind, port, server, limits, "/", token, "/sign-in")
    else:
        registry = CollectorRegistry()
        Counter("told", "Of the test.", registry=registry).inc()
        with served(metrics_app(registry), limits, lambda: None, lifespan="off") as (server, port):
            yield Edge(kind, port, server, limits, "/metrics")


@contextmanager
def served(
    app: Any, limits: ListenerLimits, end: Any, tls: ssl.SSLContext | None = None, **more: Any
) -> Iterator[tuple[Server, int]]:
    listener = listen("127.0.0.1", 0, limits, "web")
    # So that a client that reads nothing fills what the system keeps for it.
    listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = Server(listener.config(app, tls, 3, **more), end)
    thread = threading.Thread(target=server.run, args=([listener.socket],))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield server, listener.socket.getsockname()[1]
    finally:
        server.stop()
        thread.join()
        listener.close()
