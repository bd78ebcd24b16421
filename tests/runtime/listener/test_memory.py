"""Bytes of clients that stay in the memory of a process: of a lost connection none, of a waiting one a bounded part."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from runtime.listener.connections import ListenerLimits
from runtime.listener.fair_queue import MAX_WAIT_SECONDS
from runtime.listener.protocol import CLIENT_LEFT, READ_BYTES
from runtime.listener.server import WEBSOCKETS
from tests.runtime.listener.edges import served
from tests.waiting import wait_until

pytestmark = pytest.mark.process

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
PART_OF_A_FRAME = bytes([0x81, 0xFF]) + (60_000).to_bytes(8, "big") + bytes(4) + b"x" * 10_000
LIMITS = ListenerLimits(connections=200, connections_per_address=200, head_seconds=60, body_seconds=60)


async def answer_at_the_end(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer no request, and accept a WebSocket, until the client has left."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    await asyncio.wait({scope["state"][CLIENT_LEFT]})


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, set[Any]]]:
    """The port of a server, and its connections."""
    with served(answer_at_the_end, LIMITS, lambda: None, lifespan="off", **WEBSOCKETS) as (server, port):
        yield port, server.server_state.connections


def bytes_of(connection: Any) -> int:
    """Bytes that have come over a connection and are not parsed."""
    return len(
        connection.conn.reader.buffer if hasattr(connection.conn, "reader") else connection.conn.trailing_data[0]
    )


def is_waiting(transport: asyncio.Transport) -> bool:
    """Tell if nothing is read from an open connection."""
    return not transport.is_reading() and not transport.is_closing()


@pytest.mark.parametrize(
    "data",
    [GET + b"X: " + b"a" * 9_000, GET + b"\r\n" + GET * 900, GET + UPGRADE],
    ids=["head", "pipelined", "websocket"],
)
def test_lost_connection_keeps_no_bytes(data: bytes) -> None:
    with listening() as (port, connections):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(data)
            if data.endswith(UPGRADE):
                assert client.recv(4_096).startswith(b"HTTP/1.1 101")
                client.sendall(PART_OF_A_FRAME)
            (connection,) = wait_until(lambda: [one for one in tuple(connections) if bytes_of(one) > 8_000])
            # A client that leaves is not noticed while nothing is read.
            connection.loop.call_soon_threadsafe(connection.transport.abort)
        wait_until(lambda: not connections)
        assert bytes_of(connection) == 0


def test_waiting_refusal_keeps_no_bytes() -> None:
    with listening() as (port, connections), socket.create_connection(("127.0.0.1", port)) as client:
        (connection,) = wait_until(lambda: tuple(connections))
        while connection.pace.wait("127.0.0.1") < MAX_WAIT_SECONDS:
            pass
        client.sendall(GET + b"\0: 1\r\n\r\n" + b"a" * 9_000)
        wait_until(lambda: is_waiting(connection.transport))
        assert bytes_of(connection) == 0


def test_pipelined_requests_wait_in_bounded_memory() -> None:
    with listening() as (port, connections), socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        sent, requests = 0, (GET + b"\r\n") * 10_000
        # What the systems of both ends take, and no more.
        with contextlib.suppress(BlockingIOError):
            while sent < len(requests):
                sent += client.send(requests[sent:])
        (connection,) = wait_until(lambda: [one for one in tuple(connections) if is_waiting(one.transport)])
        assert sent > READ_BYTES
        assert bytes_of(connection) <= READ_BYTES
