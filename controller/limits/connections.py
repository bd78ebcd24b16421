"""Connections of anybody: how many there are, in all and from one address, whatever is said over them.

Stage: made by `controller.server` around the port that it listens on. Counted from the moment the system hands one over
to its very end, so that a handshake of TLS, an idle connection and a session count alike. One too many is closed
without an answer, which costs nothing and holds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import time
from collections import Counter
from typing import Any

log = logging.getLogger(__name__)

SPARE_FILES = 256
"""Files that a node needs besides its connections."""
COMPLAIN_SECONDS = 60.0
"""Time between two lines of the log about connections that were closed."""


class ConnectionCounts:
    """The connections that are open, and those whose TLS handshake is not done; in one event loop."""

    def __init__(self, max_connections: int, max_per_address: int, handshake_seconds: float) -> None:
        self._max_connections, self._max_per_address = max_connections, max_per_address
        self._handshake_seconds = handshake_seconds
        self._open: Counter[str] = Counter()
        self._all = self._refused = 0
        self._shaking_hands: dict[int, asyncio.TimerHandle] = {}
        self._complained_at = float("-inf")

    def admit(self, connection: socket.socket, address: str) -> bool:
        """Count a connection from an address; False: it is one too many."""
        if self._all >= self._max_connections or self._open[address] >= self._max_per_address:
            self._complain(address)
            return False
        self._all += 1
        self._open[address] += 1
        self._shaking_hands[connection.fileno()] = asyncio.get_running_loop().call_later(
            self._handshake_seconds, _cut, connection
        )
        return True

    def greet(self, number: int) -> None:
        """The connection with this file number is ready for HTTP."""
        handle = self._shaking_hands.pop(number, None)
        if handle is not None:
            handle.cancel()

    def release(self, number: int, address: str) -> None:
        """A connection from an address is closed."""
        self.greet(number)
        self._all -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _complain(self, address: str) -> None:
        self._refused += 1
        if time.monotonic() - self._complained_at > COMPLAIN_SECONDS:
            self._complained_at = time.monotonic()
            log.warning(
                "too many connections: %d are open, %d of them from %s; closed since the start: %d "
                "(controller.limits: connections, connections_per_address)",
                self._all, self._open[address], address, self._refused,
            )  # fmt: skip


class CountedListener(socket.socket):
    """A listening socket whose connections are counted."""

    def __init__(self, listening: socket.socket, counts: ConnectionCounts) -> None:
        """Takes `listening` over."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._counts = counts

    def accept(self) -> tuple[socket.socket, Any]:
        """As of any socket; `ConnectionAbortedError` when there is one too many, which asyncio passes over."""
        accepted, peer = super().accept()
        connection = _CountedConnection(accepted, network_of(str(peer[0])))
        if not self._counts.admit(connection, connection.address):
            connection.close()
            raise ConnectionAbortedError("too many connections")
        connection.counts = self._counts
        return connection, peer


class _CountedConnection(socket.socket):
    def __init__(self, accepted: socket.socket, address: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.address = address
        self.counts: ConnectionCounts | None = None
        """Set once it counts."""

    def close(self) -> None:
        """As of any socket."""
        counts, self.counts = self.counts, None
        if counts is not None:
            counts.release(self.fileno(), self.address)
        super().close()


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def network_of(address: str) -> str:
    """What counts as one address: of IPv6, where everybody has as many as they like, the first half."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address)
        if found.version == 6:
            return str(found.ipv4_mapped or ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return address


def allow_files(connections: int) -> int:
    """Let the process open files for so many connections; how many it can have at most."""
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
