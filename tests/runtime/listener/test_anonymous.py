"""Anonymous load on a process that listens: raw connections, slow ones, large ones, many.

The same tests run against controller, page and metrics, which stand behind the same listener.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from runtime.listener.connections import ListenerLimits
from runtime.listener.fair_queue import REFUSALS_AT_ONCE
from runtime.listener.protocol import CLIENT_LEFT, MAX_FRAMES
from runtime.listener.server import WEBSOCKETS
from tests.examples import only_first
from tests.runtime.listener.edges import Edge, running, served
from tests.waiting import wait_until

pytestmark = pytest.mark.process

HEAD_S, BODY_S, LATE_S = 0.4, 0.6, 10.0
FEW = {"head_seconds": HEAD_S, "body_seconds": BODY_S, "connections": 40, "connections_per_address": 30}
HEALTH = (200, 503)
"""Of a probe that is answered: the controller's broker is a closed port here."""
KINDS = ("controller", "page", "metrics")


@pytest.fixture(scope="module", params=KINDS)
def edge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running(request.param, tmp_path_factory.mktemp(request.param), **FEW) as one:
        yield one


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """A controller, for what the others do not have."""
    with running("controller", tmp_path_factory.mktemp("strict"), **FEW) as one:
        yield one


def said(connection: socket.socket, every_s: float | None = None, byte: bytes = b"x") -> tuple[bytes, float]:
    """Read until the end, and count the seconds until then, while a byte is sent now and then."""
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


def test_silent_connection_is_closed(edge: Edge) -> None:
    # The server counts from the moment at which it accepts, which may be before this thread goes on.
    began = time.monotonic()
    answer, _ = said(edge.open())
    assert answer == b""
    assert time.monotonic() - began > HEAD_S * 0.9


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"P", b"\r\n"])
def test_dribbling_head_has_an_end(edge: Edge, start: bytes) -> None:
    connection = edge.open()
    connection.sendall(start)
    answer, seconds = said(connection, HEAD_S / 8)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 408 Request Timeout\r\n", b"HTTP/1.1 400 "))
    assert seconds < LATE_S


@pytest.mark.parametrize("with_token", [True, False])
def test_dribbling_body_has_an_end(edge: Edge, with_token: bool) -> None:
    head = edge.head(edge.post, "POST") if with_token else f"POST {edge.post} HTTP/1.1\r\nHost: localhost\r\n".encode()
    connection = edge.open()
    connection.sendall(head + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\n")
    answer, seconds = said(connection, BODY_S / 8)
    assert answer.startswith(b"HTTP/1.1 ") or not answer
    assert seconds < LATE_S


def test_answered_connection_that_dribbles_has_an_end(edge: Edge) -> None:
    connection = edge.open()
    connection.sendall(edge.head(more=b"\r\n") + b"GET /hea")
    answer, seconds = said(connection, HEAD_S / 8)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer
    assert seconds < LATE_S


@pytest.mark.parametrize(
    "upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"]
)
@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"a" * 200_000,
        b"a: b\r\n" * 101,
        b"X: " + b"a" * 16_385,
        b"a:\r\n" * 40_000,
        b'Cookie: anabranch="' + b"\\" * 60_000 + b'"',
    ],
)
def test_large_head_is_refused_unparsed(
    edge: Edge, headers: bytes, upgrade: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    connection, began = edge.open(), time.process_time()
    with contextlib.suppress(OSError):
        connection.sendall(edge.head(more=upgrade + headers + b"\r\n\r\n"))
    answer, _ = said(connection)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert time.process_time() - began < 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /a HTTP/9.9",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET",
        b"\x00" * 4_000,
        b"GET  / HTTP/1.1",
        b"GET /%" + b"25" * 7_000 + b" HTTP/1.1",
        b"GET /" + b"%ff" * 4_000 + b" HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"CONNECT evil.example:80 HTTP/1.1",
        b"GET /healthz HTTP/1.1\r\nX:" + b" \t" * 8_000 + b"\0",
        b"POST /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX:" + b" \t" * 30_000 + b"\0",
    ],
)
def test_nonsense_costs_no_time_and_no_log(edge: Edge, request_line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    connection, began = edge.open(), time.process_time()
    connection.sendall(request_line + b"\r\nHost: localhost\r\nUpgrade: nonsense\r\nConnection: upgrade\r\n\r\n")
    answer, _ = said(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert time.process_time() - began < 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and "uvicorn" in record.name]


@pytest.mark.parametrize(
    "headers",
    [
        b"Host: evil.example\r\n",
        b"Host: localhost\r\nOrigin: https://evil.example\r\n",
        b"Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        b"Host: localhost\r\nHost: evil.example\r\n",
    ],
)
def test_pages_of_strangers_are_refused(edge: Edge, headers: bytes) -> None:
    with edge.open() as connection:
        token = f"Authorization: Bearer {edge.token}\r\n" if edge.token else ""
        connection.sendall(f"GET {edge.path} HTTP/1.1\r\n{token}".encode() + headers + b"\r\n")
        assert connection.recv(64).startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 "))


def test_client_that_reads_nothing_is_cut_off(edge: Edge) -> None:
    # Of the controller, the longest answer: the others fill no buffer of the system within the minute.
    request = edge.head("/openapi.json" if edge.kind == "controller" else "", more=b"\r\n") * 20
    with edge.open() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(1)
        end = time.monotonic() + 60
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    connection.send(request)
        assert time.monotonic() < end
    wait_until(lambda: edge.ask() == 200)


@contextlib.contextmanager
def silent(edge: Edge, count: int, *sources: str) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing."""
    with contextlib.ExitStack() as held:
        yield [held.enter_context(edge.open(sources[number % len(sources)])) for number in range(count)]


@pytest.mark.parametrize("sources", [["127.0.0.1"], [f"127.0.1.{number}" for number in range(1, 9)]])
def test_silent_connections_shut_out_nobody(edge: Edge, sources: list[str]) -> None:
    for _ in range(3):
        with silent(edge, 60, *sources) as many:
            assert edge.ask() == 200
            wait_until(partial(_are_closed, many, 20))
            assert edge.ask("/healthz", with_token=False) in HEALTH


def test_connections_with_a_token_give_way_to_nobody(edge: Edge) -> None:
    with edge.open() as known:
        known.sendall(edge.head(more=b"\r\n"))
        assert known.recv(4096).startswith(b"HTTP/1.1 200")
        with silent(edge, 60, "127.0.0.1", "127.0.0.2", "127.0.0.3"):
            known.sendall(edge.head(more=b"\r\n"))
            known.settimeout(LATE_S)
            found = b""
            while b"HTTP/1.1 200" not in found:
                found = found[-20:] + (chunk := known.recv(65_536))
                assert chunk


@pytest.mark.parametrize("kind", KINDS)
def test_client_over_its_share_is_refused(kind: str, tmp_path: Path) -> None:
    bounds = {"head_seconds": 60, "body_seconds": 60, "connections": 16, "connections_per_address": 16}
    with running(kind, tmp_path, **bounds) as edge, contextlib.ExitStack() as held:

        def hold() -> socket.socket:
            connection = held.enter_context(edge.open())
            path = edge.post or edge.path
            connection.sendall(edge.head(path, "POST", b"Content-Length: 9\r\nContent-Type: a/b\r\n\r\n"))
            return connection

        for _ in range(10):
            hold()
        assert edge.ask() == 200
        last = [hold(), hold()]
        wait_until(lambda: edge.ask() == 429)
        assert edge.ask("/livez" if kind == "metrics" else "/healthz") in HEALTH
        if kind != "metrics":
            assert edge.ask(with_token=False) in (303, 401)
        for connection in last:
            connection.close()
        wait_until(lambda: edge.ask() == 200)


@pytest.mark.parametrize(
    ("path", "host"), only_first(1, [("/x", "evil.example"), ("/healthz", "localhost"), ("/sign-in", "localhost")])
)
def test_fast_anonymous_requests_slow_nobody(edge: Edge, path: str, host: str) -> None:
    if edge.kind == "metrics":
        # What this machine scrapes is known there; the name is what makes a request anonymous.
        host = "evil.example"
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * 50
    with silent(edge, 10, "127.0.0.1") as many:
        for connection in many:
            connection.setblocking(False)
        answers, end = 0, time.monotonic() + 1.5
        while time.monotonic() < end:
            for connection in many:
                with contextlib.suppress(OSError):
                    connection.send(request)
                with contextlib.suppress(OSError):
                    answers += connection.recv(65_536).count(b"HTTP/1.1 ")
        assert 0 < answers <= REFUSALS_AT_ONCE + 20 * 10
        began = time.monotonic()
        assert edge.ask() == 200
        assert edge.ask("/healthz", with_token=False) in HEALTH
        assert time.monotonic() - began < LATE_S / 2


@contextlib.contextmanager
def logged_by(name: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Capture a logger that other tests may have kept from the root, raised or switched off."""
    logger = logging.getLogger(name)
    was, logger.disabled = logger.disabled, False
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, name):
            yield
    finally:
        logger.removeHandler(caplog.handler)
        logger.disabled = was


def test_stop_cancels_paced_requests_without_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with logged_by("uvicorn.error", caplog), running("page", tmp_path) as edge, contextlib.ExitStack() as held:
        connections = [held.enter_context(edge.open()) for _ in range(3 * REFUSALS_AT_ONCE)]
        for connection in connections:
            connection.sendall(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        # Once a request of every connection waits, the last one waits six seconds, twice as long as the stop.
        wait_until(lambda: len(edge.server.server_state.tasks) >= len(connections))
    assert "Cancel " in caplog.text
    assert "Traceback" not in caplog.text
    assert "Exception in ASGI" not in caplog.text


@pytest.mark.parametrize(
    "upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"]
)
def test_app_learns_that_its_client_has_left(upgrade: bytes) -> None:
    steps = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        steps.append(scope["type"])
        await scope["state"][CLIENT_LEFT]
        steps.append("gone")

    limits = ListenerLimits(connections=10, connections_per_address=10)
    with served(app, limits, lambda: None, lifespan="off", **WEBSOCKETS) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                b"GET / HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + upgrade + b"\r\n"
            )
            wait_until(lambda: len(steps) == 1)
        wait_until(lambda: steps == ["websocket" if upgrade else "http", "gone"])


def websocket(edge: Edge) -> socket.socket:
    """An open WebSocket of consumers."""
    connection = edge.open()
    connection.sendall(
        edge.head("/admin/v2/scalable/a/b/t/consumers")
        + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert connection.recv(65_536).startswith(b"HTTP/1.1 101")
    return connection


def frame(first: int, payload: bytes = b"") -> bytes:
    return bytes([first, 0x80 | len(payload), 0, 0, 0, 0]) + payload


def test_a_websocket_outlives_the_time_for_requests(strict: Edge) -> None:
    with websocket(strict) as connection:
        connection.settimeout(HEAD_S + BODY_S + 0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_excess_frames_end_the_connection(strict: Edge) -> None:
    with websocket(strict) as connection:
        connection.sendall(frame(0x01) + frame(0x00) * (MAX_FRAMES + 10))
        answer = connection.recv(65_536)
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4], "big") == 1009


def test_oversized_message_ends_connection_early(strict: Edge) -> None:
    """The connection ends before the message is received whole."""
    with websocket(strict) as connection:
        connection.sendall(bytes([0x81, 0x80 | 127]) + (65_537).to_bytes(8, "big") + bytes(4) + b"x" * 1_000)
        answer = connection.recv(65_536)
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4], "big") == 1009


def test_unread_ping_answers_do_not_pile_up(strict: Edge) -> None:
    pings = frame(0x89, b"x" * 125) * 500
    with websocket(strict) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        sent, end = 0, time.monotonic() + 60
        while sent <= 8_000_000 and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                sent += connection.send(pings[sent % len(pings) :])
        assert sent > 8_000_000
        piled = max(one.transport.get_write_buffer_size() for one in strict.server.server_state.connections)
        assert piled < 1_000_000


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
