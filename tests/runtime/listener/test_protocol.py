"""Heads of requests that are refused before they are parsed."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import AsyncMock, Mock

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.server import ServerProtocol

from runtime.listener.heads import MAX_BLANKS, MAX_HEADERS, BoundedParser
from runtime.listener.protocol import BoundedWebSocket

MAX_HEAD = 16_384
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"


def events(data: bytes) -> list[str]:
    """Names of the events of these bytes, each request answered at once; the last one is `fault STATUS` or a wait."""
    parser, found = BoundedParser(MAX_HEAD), list[str]()
    parser.receive_data(data)
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return [*found, f"fault {parser.fault}"]
        if event is h11.PAUSED:
            for answer in (h11.Response(status_code=204, headers=[]), h11.EndOfMessage()):
                parser.send(answer)
            if parser.our_state is not h11.DONE:
                return [*found, "close"]
            parser.start_next_cycle()
        elif event is h11.NEED_DATA:
            return [*found, "wait"]
        else:
            found.append(type(event).__name__)


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (GET + b"X:" + b" \t" * 8_000 + b"\0\r\n\r\n", 400),
        (GET + b"X:" + b" " * (MAX_BLANKS + 1), 400),
        (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (GET + b"tRANSFER-eNCODING :\r\n\r\n", 411),
        (GET + b"X: " + b"a" * MAX_HEAD, 431),
        (GET + b"a:\r\n" * (MAX_HEADERS + 2) + b"\r\n", 431),
        (GET + b"\0: 1\r\n\r\n", None),
    ],
)
def test_bad_head_is_refused_in_any_place(head: bytes, fault: int | None) -> None:
    assert events(head) == [f"fault {fault}"]
    assert events(GET + b"\r\n" + head) == ["Request", "EndOfMessage", f"fault {fault}"]


@pytest.mark.parametrize(
    "head",
    [
        GET + b"X:" + b" " * MAX_BLANKS + b"a\r\n\r\n",
        GET + b"X: transfer-encoding: chunked\r\n\r\n",
        GET + b"X: " + b"a" * (MAX_HEAD - 100) + b"\r\n\r\n",
    ],
)
def test_unusual_head_is_parsed(head: bytes) -> None:
    assert events(head) == ["Request", "EndOfMessage", "wait"]


def test_blanks_of_a_body_are_no_fault() -> None:
    assert events(GET + b"Content-Length: 1000\r\n\r\n" + b" " * 1_000) == ["Request", "Data", "EndOfMessage", "wait"]


@given(
    st.binary(min_size=1, max_size=4), st.sampled_from([b"", b"X:", b"X: a", b"Content-Length:"]), st.binary(max_size=3)
)
def test_parser_takes_no_time_over_any_head(piece: bytes, start: bytes, end: bytes) -> None:
    repeated = piece * (MAX_HEAD // len(piece) - 30)
    began = time.process_time()
    events(GET + start + repeated + end + b"\r\n\r\n")
    assert time.process_time() - began < 0.25


async def websocket_after_its_end() -> Any:
    """A handshake that waited for its answer until its client had broken the connection."""
    websocket: Any = object.__new__(BoundedWebSocket)
    websocket.conn, websocket.queue, websocket.writable = ServerProtocol(), asyncio.Queue(), asyncio.Event()
    websocket.writable.set()
    websocket.handshake_complete = websocket.close_sent = websocket.disconnected = False
    websocket.initial_response = (401, [], b"")
    websocket.conn.send_eof()
    return websocket


def test_refusal_after_the_end_of_an_upgrade_is_dropped() -> None:
    async def refuse() -> None:
        websocket = await websocket_after_its_end()
        await websocket.send({"type": "websocket.http.response.body", "body": b"no"})

    asyncio.run(refuse())


@pytest.mark.parametrize("failure", [False, True])
def test_upgrade_unanswered_at_its_end_is_only_closed(failure: bool) -> None:
    async def serve() -> None:
        websocket = await websocket_after_its_end()
        websocket.initial_response, websocket.close_timer, websocket.scope = None, None, {}
        websocket.transport, websocket.logger = Mock(), Mock()
        websocket.app = AsyncMock(side_effect=ValueError if failure else None, return_value=None)
        await websocket.run_asgi()
        websocket.transport.close.assert_called_once()
        websocket.transport.write.assert_not_called()

    asyncio.run(serve())
