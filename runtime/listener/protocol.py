"""Connection bounds that uvicorn leaves open: slow requests, large heads and unread answers.

Stage: between `runtime.listener.server`, which gives these classes to uvicorn, and the sockets of `connections`.
uvicorn bounds the silence after an answer only, and h11 the bytes of a head only while it is incomplete.

| state | bound |
| --- | --- |
| connected, or answered, and no whole head has come | `head_seconds`, then 408; silence after an answer: uvicorn's |
| bytes of a head | `head_bytes` and `MAX_HEADERS` lines, then 431, before anything is parsed |
| blanks in a head | `MAX_BLANKS` in a row, then 400: h11 takes time by the square of them |
| a body in chunks | none, 411: chunks of a byte and lines behind the last one cost more than anybody needs them |
| a head has come, and not the whole body | `body_seconds`, then 408, or the end when the answer has begun |
| the request is there | none: how long an answer takes is the process' own doing |
| an answer is there, and its client reads nothing | `body_seconds`, then the end |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from runtime.listener.connections import ConnectionCounts
from runtime.listener.fair_queue import Pace, network_of
from runtime.listener.heads import REASONS, BoundedParser, is_large_head

TRUST: Final = "anabranch.trust"
"""Key of `state` in the ASGI scope: `ConnectionCounts.trust` of the connection, for the name of a client."""
CLIENT_LEFT: Final = "anabranch.client_left"
"""Key of `state` in the ASGI scope: a future that is done when the connection is lost."""
READ_BYTES = 65_536
"""Taken from a connection at once: as much of it waits in memory beside the request that is being answered."""
MAX_MESSAGE_BYTES = 65_536
"""Of one message of a WebSocket; no command is as long, and what has come of one waits in memory for the rest."""
MAX_FRAMES = 1_000
"""Frames that one message of a WebSocket may come in; empty ones add nothing to its size."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection."""

    head_seconds: float
    """For the head of a request to arrive, from the connection or from the answer before it."""
    body_seconds: float
    """For its body to arrive, and for a client to take what is sent to it."""
    head_bytes: int
    """Of its first line and its headers."""


class BoundedHttp(H11Protocol):
    """uvicorn's connection with deadlines; subclasses, one a server, have the two that are set here."""

    limits: ConnectionLimits
    counts: ConnectionCounts
    pace: Pace

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn: BoundedParser = BoundedParser(self.limits.head_bytes)
        self._waits_for: object = None
        """The state of the client that the deadline belongs to."""
        self._deadline: asyncio.TimerHandle | None = None
        self._is_handed_over = False
        """It is a WebSocket now."""
        self._unread: asyncio.TimerHandle | None = None
        """Ends the connection of a client that reads nothing."""
        self._late: asyncio.TimerHandle | None = None
        """Sends a refusal that has to wait."""
        self._number: int | None = None
        """Of the connection's file, while it is open."""
        self._client_left: asyncio.Future[None] = self.loop.create_future()
        self.app_state = {**self.app_state, TRUST: self._trust, CLIENT_LEFT: self._client_left}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._number = transport.get_extra_info("socket").fileno()
        self.counts.greet(self._number, transport.abort)
        # asyncio's own would be four times as much; for TLS see `Listener.config`, too.
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        elif hasattr(transport, "set_read_buffer_limits"):
            transport.set_read_buffer_limits(READ_BYTES, READ_BYTES // 2)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._number = None
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)
        self._client_left.set_result(None)
        self._drop_deadline()
        self.resume_writing()
        self._forget_requests()

    def _forget_requests(self) -> None:
        """Free what has come over the connection, which is lost.

        It refers to itself in several ways. The garbage collector would free it after many more connections: it counts
        objects and no bytes.
        """
        self.conn.drop_data()
        self._unset_keepalive_if_required()
        self._late = None
        self.app_state, self.headers = {}, []
        self.cycle = self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._late is None:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or is not to be."""
        self._refuse_in_time(lambda: self._refuse(self.conn.fault or 400))

    def _refuse_in_time(self, refuse: Callable[[], None]) -> None:
        """Refuse at the pace of the client's network; meanwhile nothing of the connection is read."""
        wait = self.pace.wait(network_of(self.client[0] if self.client else ""))
        if wait <= 0:
            refuse()
            return
        self._drop_deadline()
        self._unset_keepalive_if_required()
        self.conn.drop_data()
        self.flow.pause_reading()
        self._late = self.loop.call_later(wait, refuse)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.body_seconds, self._cut_off)

    def _cut_off(self) -> None:
        """Reset the connection; after an orderly close the kernel would keep what is unsent."""
        # A linger of 0 seconds makes the close a reset.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def on_response_complete(self) -> None:
        """Go on with the next request, if the connection is not closing."""
        if self.transport.is_closing():
            _read_again(self.flow)
        super().on_response_complete()

    def handle_events(self) -> None:
        """Take what has come; called for new bytes, and for those that waited for an answer."""
        super().handle_events()
        self._follow()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to `BoundedWebSocket`."""
        self._is_handed_over = True
        self._drop_deadline()
        self.resume_writing()
        # The library of WebSockets fails without an answer at a line above 8 KiB.
        if is_large_head(event.target.decode("latin-1"), self.headers, min(self.limits.head_bytes, 8_000)):
            self._refuse_in_time(lambda: self._refuse(431))
        else:
            super().handle_websocket_upgrade(event)
            self.conn.drop_data()

    def _trust(self, client: str) -> bool:
        # The file of a connection that is lost may be that of another one now; of a WebSocket only the transport knows.
        return self._number is None or self.transport.is_closing() or self.counts.trust(self._number, client)

    def _follow(self) -> None:
        """Keep the deadline of the state that the client is in."""
        state = self.conn.their_state
        if state is self._waits_for or self._is_handed_over or self._late is not None:
            return
        self._drop_deadline()
        seconds = {h11.IDLE: self.limits.head_seconds, h11.SEND_BODY: self.limits.body_seconds}.get(state)
        if seconds is not None and not self.transport.is_closing():
            self._waits_for = state
            self._deadline = self.loop.call_later(seconds, self._too_late)

    def _drop_deadline(self) -> None:
        self._waits_for = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self.conn.trailing_data[0] or self.conn.their_state is h11.SEND_BODY:
            self._refuse(408)
        elif not self.transport.is_closing():
            if self._number is not None:
                self.counts.close(self._number)
            self.transport.close()

    def _refuse(self, status: int) -> None:
        """Answer in place of the app when it has not begun to, and close."""
        if self.transport.is_closing():
            return
        _read_again(self.flow)
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"reason": REASONS[status]}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        # A refused head is unparsed, and `scope` then that of the request before it.
        is_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
        answer = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        for event in (answer, h11.Data(data=b"" if is_head else body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, without what a client could have it pile up."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self.app_state[CLIENT_LEFT].set_result(None)
        self.conn.reader.discard()
        self.frames = []

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The app has ended, and with it the connection."""
        super().on_task_complete(task)
        _read_again(self.transport)

    async def send(self, message: Any) -> None:
        """Drop the refusal of a handshake whose client has broken the connection while it waited."""
        if self.handshake_complete or not self.conn.eof_sent:
            await super().send(message)

    def send_500_response(self) -> None:
        """Not to a client that got the end of its connection already; uvicorn would fail."""
        if not self.conn.eof_sent:
            super().send_500_response()

    def handle_ping(self) -> None:
        """A client that asks and does not read gets no answers."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Any) -> None:
        """One more frame of a message."""
        if len(self.frames) < MAX_FRAMES:
            super().handle_cont(event)
        else:
            self.frames = []
            self.conn.fail(1009, f"a message of more than {MAX_FRAMES} frames")
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """End the connection; uvicorn expects that the handshake is done."""
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
        else:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1002})
            self.transport.close()


def _read_again(paused: FlowControl | asyncio.Transport) -> None:
    """Read from a connection that closes: with TLS, if its client has left unread, its close alone would not end it."""
    # asyncio's TLS transport is empty when it has been closed twice.
    with contextlib.suppress(AttributeError):
        paused.resume_reading()


def bounded_http(limits: ConnectionLimits, counts: ConnectionCounts) -> type[BoundedHttp]:
    """The class that uvicorn makes connections of, for one server."""
    return type("BoundedHttp", (BoundedHttp,), {"limits": limits, "counts": counts, "pace": Pace()})
