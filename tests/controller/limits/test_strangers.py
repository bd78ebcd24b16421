"""What somebody without a token can take of a controller: raw connections, slow ones, large ones, many."""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial

import httpx
import pytest

from controller.limits.protocol import MAX_FRAMES
from tests.controller.conftest import LIMITS, RunningController, run_controller
from tests.waiting import wait_until

pytestmark = pytest.mark.process

HEAD_S, BODY_S, LATE_S = 0.4, 0.6, 5.0
FEW = LIMITS.model_copy(
    update={"head_seconds": HEAD_S, "body_seconds": BODY_S, "connections": 40, "connections_per_address": 30}
)
POST = b"POST /admin/v2/scalable/a/b/t/split/0 HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with run_controller(tmp_path_factory.mktemp("strict") / "layouts.db", token="s3cret", limits=FEW) as running:
        running.service.create_topic("topic://a/b/t", 1, {})
        yield running


def opened(running: RunningController, source: str = "127.0.0.1") -> socket.socket:
    address = running.client.base_url.host, running.client.base_url.port
    return socket.create_connection(address, timeout=LATE_S, source_address=(source, 0))


def said(connection: socket.socket, every_s: float | None = None, byte: bytes = b"x") -> tuple[bytes, float]:
    """What comes until the end, and the seconds until then, while a byte is sent now and then."""
    began, found = time.monotonic(), b""
    with connection:
        while time.monotonic() - began < LATE_S:
            if _is_readable(connection, every_s or LATE_S):
                try:
                    data = connection.recv(65_536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return found, time.monotonic() - began
                found += data
            elif every_s:
                with contextlib.suppress(OSError):
                    connection.sendall(byte)
    raise AssertionError(f"still open after {LATE_S} s: {found!r}")


def test_a_connection_that_says_nothing_is_closed(strict: RunningController) -> None:
    answer, seconds = said(opened(strict))
    assert answer == b""
    assert seconds > HEAD_S * 0.9


@pytest.mark.parametrize("start", [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"P", b"\r\n"])
def test_a_head_that_dribbles_has_an_end(strict: RunningController, start: bytes) -> None:
    connection = opened(strict)
    connection.sendall(start)
    answer, seconds = said(connection, HEAD_S / 8)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 408 Request Timeout\r\n", b"HTTP/1.1 400 "))
    assert seconds < LATE_S


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 1000\r\nAuthorization: Bearer s3cret\r\n\r\n", b"408"),
        (b"Transfer-Encoding: chunked\r\nAuthorization: Bearer s3cret\r\n\r\n9999\r\n", b"408"),
        (b"Content-Length: 1000\r\n\r\n", b"401"),
        (b"Transfer-Encoding: chunked\r\n\r\n9999\r\n", b"401"),
        (b"Content-Length: 1000\r\nExpect: 100-continue\r\nAuthorization: Bearer s3cret\r\n\r\n", b"100"),
    ],
)
def test_a_body_that_dribbles_has_an_end_whether_it_was_answered_or_not(
    strict: RunningController, head: bytes, status: bytes
) -> None:
    connection = opened(strict)
    connection.sendall(POST + head)
    answer, seconds = said(connection, BODY_S / 8)
    assert answer.startswith(b"HTTP/1.1 " + status)
    if status == b"408":
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "the request did not arrive in time"
    assert seconds < LATE_S


def test_a_connection_that_was_answered_and_then_dribbles_has_an_end(strict: RunningController) -> None:
    connection = opened(strict)
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
    answer, seconds = said(connection, HEAD_S / 8)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 408" in answer
    assert seconds < LATE_S


@pytest.mark.parametrize(
    "upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"]
)
@pytest.mark.parametrize(
    "headers",
    [b"X: " + b"a" * 200_000, b"a: b\r\n" * 101, b"X: " + b"a" * (FEW.head_bytes + 1), b"a:\r\n" * 40_000],
)
def test_a_head_that_is_too_large_is_refused(
    strict: RunningController, headers: bytes, upgrade: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    connection = opened(strict)
    with contextlib.suppress(OSError):
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n" + upgrade + headers + b"\r\n\r\n")
    answer, _ = said(connection)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def websocket(running: RunningController) -> socket.socket:
    """An open WebSocket of consumers."""
    connection = opened(running)
    connection.sendall(
        b"GET /admin/v2/scalable/a/b/t/consumers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert connection.recv(65_536).startswith(b"HTTP/1.1 101")
    return connection


def frame(first: int, payload: bytes = b"") -> bytes:
    return bytes([first, 0x80 | len(payload), 0, 0, 0, 0]) + payload


def test_a_websocket_outlives_the_time_for_requests(strict: RunningController) -> None:
    with websocket(strict) as connection:
        connection.settimeout(HEAD_S + BODY_S + 0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_a_message_of_more_frames_than_anybody_needs_ends_its_connection(strict: RunningController) -> None:
    with websocket(strict) as connection:
        connection.sendall(frame(0x01) + frame(0x00) * (MAX_FRAMES + 10))
        answer = connection.recv(65_536)
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4], "big") == 1009


def test_a_message_that_is_larger_than_any_command_ends_its_connection_before_it_is_there(
    strict: RunningController,
) -> None:
    with websocket(strict) as connection:
        connection.sendall(bytes([0x81, 0x80 | 127]) + (65_537).to_bytes(8, "big") + bytes(4) + b"x" * 1_000)
        answer = connection.recv(65_536)
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4], "big") == 1009


def test_who_asks_by_pings_and_reads_nothing_has_no_answers_piled_up(strict: RunningController) -> None:
    pings = frame(0x89, b"x" * 125) * 500
    with websocket(strict) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        sent, end = 0, time.monotonic() + 10
        while sent <= 8_000_000 and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                sent += connection.send(pings[sent % len(pings) :])
        assert sent > 8_000_000
        piled = max(one.transport.get_write_buffer_size() for one in strict.server.server_state.connections)
        assert piled < 1_000_000


def test_connections_are_free_again_when_they_were_closed_in_whatever_way(strict: RunningController) -> None:
    url = f"{strict.url}/admin/v2/scalable/a/b"
    for _ in range(3):
        with contextlib.ExitStack() as held:
            many = [held.enter_context(opened(strict)) for _ in range(FEW.connections_per_address + 10)]
            many[0].sendall(POST)
            wait_until(partial(_are_closed, many, 10))
        wait_until(lambda: _status(url) == 401)


def _are_closed(connections: Sequence[socket.socket], at_least: int) -> bool:
    return sum(map(_is_closed, connections)) >= at_least


def _is_readable(connection: socket.socket, seconds: float) -> bool:
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection, selectors.EVENT_READ)
        return bool(waiting.select(seconds))


def _is_closed(connection: socket.socket) -> bool:
    try:
        return _is_readable(connection, 0) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _status(url: str) -> int:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code
    return 0
