"""Connection limits, in total and by network; connections without a known token are evicted first.

Stage: made by `runtime.listener.server` around the port that it listens on. Counted from the moment the system hands
one over to its very end, so that a TLS handshake, an idle connection and a session count alike.

A connection is unknown until a request with a known token comes over it. A network may have so many unknown ones; one
more closes its oldest. When all connections are taken, the oldest unknown one of all closes. So whoever has a token
always gets in, from the same address too, however many silent connections there are.

Whoever is closed at once connects again at once, and each time costs the event loop an accept, a protocol and a close.
So closings of unknown connections have a pace by network. Until its turn comes, a closed connection is only a
duplicate of its file, which nobody reads: it takes one of the connections, and is the first to give way.

While a network leaves connections faster than that pace itself, those that have ended already are closed unread.

A client, known by its token, may hold `SHARE` times the connections that no client holds: three quarters of all while
it is alone, and always so few that there is room for the next client. A request over one more connection is refused,
and that connection stays unknown.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.listener.fair_queue import Pace, network_of

log = logging.getLogger(__name__)

COMPLAIN_SECONDS = 60.0
"""Time between two lines of the log about connections that were closed."""
MAX_ACCEPTED_AT_ONCE = 8
"""Connections that are taken in one round of the event loop; work on others goes on between two rounds."""
MAX_DROPPED_AT_ONCE = 16
"""Connections that are closed unread before one is taken."""
_TCP_ENDED = (7, 8)
"""States of a connection that its client has reset or closed (Linux: TCP_CLOSE, TCP_CLOSE_WAIT)."""
SHARE = 3
"""Connections of one client, in multiples of those that no client holds."""


@dataclass(frozen=True)
class ListenerLimits:
    """Limits on connections, and on heads and bodies of requests."""

    connections: int
    """Concurrent connections; a further one closes the oldest without a known token."""
    connections_per_address: int
    """Connections without a known token per address (IPv6: per /64); a further one closes the oldest."""
    head_seconds: float = 10
    """Timeout of a TLS handshake, and of a request's head."""
    body_seconds: float = 30
    """Timeout of a request's body, and of a client's reading."""
    head_bytes: int = 16_384
    """Largest head of a request: its first line and its headers."""


class ConnectionCounts:
    """The connections that are open, and those whose TLS handshake is not done; in one event loop."""

    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        handshake_seconds: float,
        section: str = "controller",
        closings: Pace | None = None,
        departures: Pace | None = None,
    ) -> None:
        """`section`: of the settings, for the log; `closings`, `departures`: the pace of ends by us, by clients."""
        self._max_connections, self._max_per_address = max_connections, max_per_address
        self._handshake_seconds, self._section = handshake_seconds, section
        self._all = self._refused = 0
        self._unknown: OrderedDict[int, _CountedConnection] = OrderedDict()
        """Those that never carried a known token, by file number, the oldest first."""
        self._by_network: dict[str, OrderedDict[int, _CountedConnection]] = {}
        """The same of each network."""
        self._clients: dict[int, str] = {}
        """Clients of the other connections, by file number."""
        self._by_client = Counter[str]()
        """Connections of each client."""
        self._shaking_hands: dict[int, asyncio.TimerHandle] = {}
        self._held: OrderedDict[int, asyncio.TimerHandle] = OrderedDict()
        """Duplicates of files whose connections are closed for us, the longest held first."""
        self._closings, self._departures = closings or Pace(), departures or Pace()
        self._complained_at = float("-inf")

    def admit(self, connection: "_CountedConnection") -> bool:
        """Count a connection, in whose place another one may be closed; False: there is no room."""
        same = self._by_network.get(connection.network)
        if same is not None and len(same) >= self._max_per_address:
            self._evict(next(iter(same.values())))
        if self._all >= self._max_connections:
            if not self._held and self._unknown:
                self._evict(next(iter(self._unknown.values())))
            if self._held:
                self._let_go(next(iter(self._held)))
            if self._all >= self._max_connections:
                self._complain_of(connection.network)
                return False
        number = connection.fileno()
        self._all += 1
        self._unknown[number] = connection
        self._by_network.setdefault(connection.network, OrderedDict())[number] = connection
        self._shaking_hands[number] = asyncio.get_running_loop().call_later(self._handshake_seconds, self.close, number)
        return True

    def is_abandoned(self, accepted: socket.socket, network: str) -> bool:
        """Tell if a connection has ended before it is counted, and its network leaves many so."""
        return self._departures.is_ahead(network) and _has_ended(accepted) and self._departures.wait(network) > 0

    def close(self, number: int) -> None:
        """Close the unknown connection with this file number, at the pace of its network."""
        if (connection := self._unknown.get(number)) is None:
            return
        connection.counts = None
        self.release(number, connection.network)
        wait = self._closings.wait(connection.network)
        # Without a file to spare it is closed at once.
        with contextlib.suppress(OSError):
            if wait > 0:
                held = os.dup(number)
                self._all += 1
                self._held[held] = asyncio.get_running_loop().call_later(wait, self._let_go, held)
        connection.cut()

    def close_held(self) -> None:
        """Close all files that are held."""
        for held in tuple(self._held):
            self._let_go(held)

    def _let_go(self, held: int) -> None:
        self._held.pop(held).cancel()
        self._all -= 1
        os.close(held)

    def greet(self, number: int, abort: Callable[[], None]) -> None:
        """The connection with this file number is ready for HTTP; `abort` ends it at once."""
        self._drop_deadline(number)
        if (connection := self._unknown.get(number)) is None:
            # It was closed before, and what it had sent already is not served.
            abort()
        else:
            connection.cut = abort  # type: ignore[method-assign]

    def trust(self, number: int, client: str) -> bool:
        """A request of a client with a known token has come over the connection, which now gives way to nobody.

        False: the client holds as many connections as it may, and this one is as before.
        """
        before, connection = self._clients.get(number), self._unknown.get(number)
        if before == client or (before is None and connection is None):
            return True
        held = self._by_client[client]
        if held >= SHARE * (self._max_connections - len(self._clients)):
            self._complain(f"{held} of them of client {client}")
            return False
        self._drop_client(number)
        self._clients[number] = client
        self._by_client[client] += 1
        if connection is not None:
            self._forget(number, connection.network)
        return True

    def release(self, number: int, network: str) -> None:
        """A connection from a network is closed."""
        self._drop_deadline(number)
        self._all -= 1
        if number in self._unknown:
            self._departures.wait(network)
        self._forget(number, network)
        self._drop_client(number)

    def _evict(self, connection: "_CountedConnection") -> None:
        self._complain_of(connection.network)
        self.close(connection.fileno())

    def _forget(self, number: int, network: str) -> None:
        self._unknown.pop(number, None)
        if (same := self._by_network.get(network)) is not None:
            same.pop(number, None)
            if not same:
                del self._by_network[network]

    def _drop_client(self, number: int) -> None:
        if (client := self._clients.pop(number, None)) is not None:
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]

    def _drop_deadline(self, number: int) -> None:
        if (handle := self._shaking_hands.pop(number, None)) is not None:
            handle.cancel()

    def _complain_of(self, network: str) -> None:
        self._complain(f"{len(self._by_network.get(network, ()))} of them from {network} and without a token")

    def _complain(self, detail: str) -> None:
        self._refused += 1
        if time.monotonic() - self._complained_at > COMPLAIN_SECONDS:
            self._complained_at = time.monotonic()
            log.warning(
                "too many connections: %d are open, %s; closed or refused since the start: %d (%s)",
                self._all,
                detail,
                self._refused,
                _limits_of(self._section),
            )


def _limits_of(section: str) -> str:
    """Name the keys that set a listener's limits; only the controller has such keys."""
    return "controller.limits: connections, connections_per_address" if section == "controller" else section


class CountedListener(socket.socket):
    """A listening socket whose connections are counted."""

    def __init__(self, listening: socket.socket, counts: ConnectionCounts) -> None:
        """Take over the socket `listening`; the original object is detached."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._counts = counts
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept and count one. Raises `ConnectionAbortedError`, which asyncio ignores, for one too many."""
        for _ in range(MAX_DROPPED_AT_ONCE):
            if self._accepted >= MAX_ACCEPTED_AT_ONCE:
                break
            try:
                accepted, peer = super().accept()
            except BlockingIOError:
                self._accepted = 0
                raise
            network = network_of(str(peer[0]))
            if not self._counts.is_abandoned(accepted, network):
                self._accepted += 1
                return self._counted(accepted, network), peer
            accepted.close()
        # asyncio takes as many as wait, and does nothing else meanwhile; this ends its round.
        self._accepted = 0
        raise BlockingIOError

    def _counted(self, accepted: socket.socket, network: str) -> "_CountedConnection":
        connection = _CountedConnection(accepted, network)
        if not self._counts.admit(connection):
            connection.close()
            raise ConnectionAbortedError("too many connections")
        connection.counts = self._counts
        return connection

    def close(self) -> None:
        """Listen no more, and hold no closed connections."""
        self._counts.close_held()
        super().close()


class _CountedConnection(socket.socket):
    def __init__(self, accepted: socket.socket, network: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.network = network
        self.counts: ConnectionCounts | None = None
        """Set while it counts."""

    def close(self) -> None:
        """Release the connection's count, then close the socket."""
        counts, self.counts = self.counts, None
        if counts is not None:
            counts.release(self.fileno(), self.network)
        super().close()

    def cut(self) -> None:
        """End it without a word to its client, as it may be held; whoever reads from it closes it then."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RD)


def _has_ended(accepted: socket.socket) -> bool:
    return hasattr(socket, "TCP_INFO") and accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _TCP_ENDED
