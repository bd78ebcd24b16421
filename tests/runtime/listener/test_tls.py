"""TLS connections: their bytes in memory are bounded, and each ends when its client has left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from runtime.listener.connections import ListenerLimits
from runtime.listener.protocol import READ_BYTES
from runtime.listener.server import WEBSOCKETS
from schemas.tls import TlsFiles, client_context, listener_context
from tests import tls
from tests.runtime.listener.edges import SECONDS, served
from tests.waiting import wait_until

pytestmark = pytest.mark.process

LIMITS = ListenerLimits(connections=200, connections_per_address=200, head_seconds=60, body_seconds=60)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
REFUSED = GET + b"\0: 1\r\n\r\n"
UNREAD = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 90000\r\n\r\n" + b"a" * 80_000
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MESSAGE = bytes([0x81, 0x81, *bytes(4)]) + b"a"
ROUNDS = 20
"""Of the event loop, in which it notices that a client has left."""


@contextlib.contextmanager
def connected() -> Iterator[tuple[ssl.SSLSocket, Any, list[asyncio.Future[None]], set[Any]]]:
    """A client, its connection at the server, what the answers wait for, and all connections."""
    answers: list[asyncio.Future[None]] = []

    async def answer_when_asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        answers.append(asyncio.get_running_loop().create_future())
        await answers[-1]
        if scope["type"] == "websocket":
            return
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    own = listener_context(TlsFiles(tls.certificate("server"), tls.key("server")))
    with (
        served(answer_when_asked, LIMITS, lambda: None, own, lifespan="off", **WEBSOCKETS) as (server, port),
        socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
        client_context(TlsFiles(ca=tls.CA)).wrap_socket(plain, server_hostname="localhost") as client,
    ):
        connections = server.server_state.connections
        (connection,) = wait_until(lambda: tuple(connections))
        try:
            yield client, connection, answers, connections
        finally:
            connection.loop.call_soon_threadsafe(connection.transport.abort)


async def rounds() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the TLS of asyncio in Python 3.10 is another one")
@pytest.mark.parametrize("data", [REFUSED, UNREAD, GET + UPGRADE], ids=["refused", "unread", "websocket"])
def test_client_that_leaves_unread_is_closed(data: bytes) -> None:
    with connected() as (client, connection, answers, connections):
        while connection.pace.wait("127.0.0.1") < 1:
            pass
        client.sendall(data)
        if data.endswith(UPGRADE):
            assert client.recv(4_096).startswith(b"HTTP/1.1 101")
            client.sendall(MESSAGE)
        wait_until(lambda: not connection.transport.is_reading())
        client.shutdown(socket.SHUT_WR)
        asyncio.run_coroutine_threadsafe(rounds(), connection.loop).result(SECONDS)
        for answer in answers:
            connection.loop.call_soon_threadsafe(answer.set_result, None)
        wait_until(lambda: not connections)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the TLS of asyncio in Python 3.10 is another one")
def test_requests_behind_one_wait_in_bounded_memory() -> None:
    with connected() as (client, connection, _, _):
        client.setblocking(False)
        sent, requests = 0, (GET + b"\r\n") * 40_000
        with contextlib.suppress(ssl.SSLWantWriteError):
            while sent < len(requests):
                sent += client.send(requests[sent : sent + 8_192])
        wait_until(lambda: not connection.transport.is_reading())
        asyncio.run_coroutine_threadsafe(rounds(), connection.loop).result(SECONDS)
        assert sent > 4 * READ_BYTES
        assert connection.transport.get_read_buffer_size() <= 2 * READ_BYTES
        assert len(connection.conn.trailing_data[0]) <= 2 * READ_BYTES
