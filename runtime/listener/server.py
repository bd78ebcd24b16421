"""A bound port, uvicorn around an app, and its start and end, for every process that listens.

All that can be wrong with a port is found before the first request.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from runtime.listener.connections import ConnectionCounts, CountedListener, ListenerLimits
from runtime.listener.protocol import MAX_MESSAGE_BYTES, READ_BYTES, BoundedWebSocket, ConnectionLimits, bounded_http

log = logging.getLogger(__name__)

MAX_UNREAD_SECONDS = 60
"""Time after which a connection ends when its client reads nothing (Linux)."""
SPARE_FILES = 256
"""Files that a process needs besides its connections."""
_NO_ERRORS = (
    "without completing handshake",
    "Invalid UTF-8 sequence received",
    "Invalid HTTP request received",
    "Unsupported upgrade request",
    "No supported WebSocket library detected",
)
"""Beginnings of what uvicorn logs as our errors: refused or redirected WebSockets, wrong bytes of clients."""


class ListenError(Exception):
    """A port cannot be listened on; the message says why and what to do, `detail` only why."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True)
class Listener:
    """A port that is bound, and what clients can take of it."""

    socket: CountedListener
    counts: ConnectionCounts
    limits: ListenerLimits

    def config(self, app: ASGIApp, tls: ssl.SSLContext | None, stop_seconds: int, **more: Any) -> uvicorn.Config:
        """Return how uvicorn serves an app, with everything bounded that a stranger can send."""
        limits = self.limits
        config = uvicorn.Config(
            app,
            http=bounded_http(
                ConnectionLimits(limits.head_seconds, limits.body_seconds, limits.head_bytes), self.counts
            ),
            h11_max_incomplete_event_size=limits.head_bytes,
            # A header could say that a request came from another address.
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=stop_seconds,
            **{"ws": "none", "lifespan": "on", **more},
        )
        # The context follows its files; one that uvicorn makes would not.
        config.load()
        # Any client could have uvicorn write a line or two a request.
        logging.getLogger("uvicorn.error").addFilter(_is_ours)
        config.ssl = tls
        if tls is not None:
            # Each connection has a buffer as large before its handshake; asyncio's own would be four times as much.
            SSLProtocol.max_size = READ_BYTES  # type: ignore[attr-defined]
        return config

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()


WEBSOCKETS = {
    "ws": BoundedWebSocket,
    "ws_max_size": MAX_MESSAGE_BYTES,
    # Deflating one layout for a thousand sessions would be done a thousand times.
    "ws_per_message_deflate": False,
}
"""Of `Listener.config`, for an app that takes WebSockets."""


def listen(host: str, port: int, limits: ListenerLimits, section: str, backlog: int = 2048) -> Listener:
    """Bind a port, 0 for a free one. `section`: of the settings. Raises `ListenError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, UnicodeError) as error:
        detail = "not an address"
        if isinstance(error, OSError):
            # The text of the exception names the address once more.
            number = error.errno or 0
            detail = os.strerror(number) if number > 0 else str(error.strerror)
        raise ListenError(
            f"cannot listen on {host}:{port}: {detail}; choose another {section}.port (0 = a free one)", detail
        ) from error
    return listener_of(bound, limits, section)


def listener_of(bound: socket.socket, limits: ListenerLimits, section: str) -> Listener:
    """Take a bound port over."""
    # asyncio does this for sockets that it makes itself only; without it an answer with a body takes 40 ms longer.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel cuts off a client that reads nothing, and its write buffer goes with it.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, MAX_UNREAD_SECONDS * 1000)
    counts = ConnectionCounts(
        allow_files(limits.connections), limits.connections_per_address, limits.head_seconds, section
    )
    return Listener(CountedListener(bound, counts), counts, limits)


def allow_files(connections: int) -> int:
    """Let the process open files for so many connections, and return how many it can have at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    possible = max(1, soft - SPARE_FILES)
    log.warning("only %d connections are possible, as the system allows %d open files (ulimit -n)", possible, soft)
    return possible


def url_of(listener: Listener, is_secure: bool) -> str:
    """Return the address that clients on this machine use."""
    host, port = listener.socket.getsockname()[:2]
    scheme = "https" if is_secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn server that calls `ready` once it serves, and `end_streams` before it waits at a stop."""

    def __init__(
        self, config: uvicorn.Config, end_streams: Callable[[], None], ready: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._end_streams, self._ready = end_streams, ready
        self.beat: Callable[[], None] = lambda: None
        """Called ten times a second while the event loop makes progress."""

    def stop(self) -> None:
        """End as soon as possible; harmless when it has ended."""
        self.should_exit = True

    def serve_until_signalled(self, listener: Listener) -> None:
        """Serve until SIGTERM or SIGINT; on the main thread."""
        # uvicorn takes these over while it runs and raises them again at its end: that must not kill the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        self.run(sockets=[listener.socket])

    async def on_tick(self, counter: int) -> bool:
        self.beat()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def _is_ours(record: logging.LogRecord) -> bool:
    # At a stop every request that still waits for its turn is cancelled; a client could have a thousand wait.
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not any(words in record.getMessage() for words in _NO_ERRORS)
