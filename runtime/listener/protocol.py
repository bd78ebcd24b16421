"""Connection limits that uvicorn lacks: slow requests, large heads and unread responses.

Stage: between `runtime.listener.server`, which gives these classes to uvicorn, and the sockets of `connections`.
uvicorn itself limits only the silence after a response, and h11 the size of a head only while it is incomplete.

| state | limit |
| --- | --- |
| connected or answered, head incomplete | `head_seconds`, then 408; silence after a response: uvicorn's |
| size of a head | `head_bytes` and `MAX_HEADERS` lines, then 431, before anything is parsed |
| blanks in a head | `MAX_BLANKS` in a row, then 400: h11 takes quadratic time for them |
| a body in chunks | refused, 411: tiny chunks and trailers are costly, and no client needs them |
| head complete, body incomplete | `body_seconds`, then 408, or a close if the response has begun |
| request complete | none: the time until the response depends on this process alone |
| response sent, client reads nothing | `body_seconds`, then a reset |
"""

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
"""Bytes read from a connection at once; as many wait in memory beside the request that is being answered."""
MAX_MESSAGE_BYTES = 65_536
"""Longest message of a WebSocket, far above any command; an incomplete one waits in memory."""
MAX_FRAMES = 1_000
"""Most frames of one WebSocket message; empty ones add nothing to its size."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one connection."""

    head_seconds: float
    """Time for the head of a request to arrive, from the connection or the previous response on."""
    body_seconds: float
    """Time for its body to arrive, and for a client to read what is sent to it."""
    head_bytes: int
    """Size of its first line and its headers."""


class BoundedHttp(H11Protocol):
    """uvicorn's HTTP connection with deadlines; each server has a subclass with its own limits."""

    limits: ConnectionLimits
    counts: ConnectionCounts
    pace: Pace

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn: BoundedParser = BoundedParser(self.limits.head_bytes)
        self._deadline_state: object = None
        """State of the client to which the deadline belongs."""
        self._deadline: asyncio.TimerHandle | None = None
        self._is_handed_over = False
        """True once it is a WebSocket."""
        self._unread_timer: asyncio.TimerHandle | None = None
        """Timer that resets the connection of a client that reads nothing."""
        self._refusal_timer: asyncio.TimerHandle | None = None
        """Timer of a refusal that has to wait."""
        self._descriptor: int | None = None
        """File descriptor of the connection, while it is open."""
        self._client_left: asyncio.Future[None] = self.loop.create_future()
        self.app_state = {**self.app_state, TRUST: self._trust, CLIENT_LEFT: self._client_left}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self.counts.greet(self._descriptor, transport.abort)
        # asyncio's own buffer would be four times as large; for TLS see also `Listener.config`.
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        elif hasattr(transport, "set_read_buffer_limits"):
            transport.set_read_buffer_limits(READ_BYTES, READ_BYTES // 2)
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._descriptor = None
        if self._refusal_timer is not None:
            self._refusal_timer.cancel()
        super().connection_lost(exc)
        self._client_left.set_result(None)
        self._drop_deadline()
        self.resume_writing()
        self._forget_requests()

    def _forget_requests(self) -> None:
        """Free the received data of a lost connection.

        A connection is part of reference cycles, and the garbage collector counts objects, not bytes: it would let many
        connections pile up first.
        """
        self.conn.drop_data()
        self._unset_keepalive_if_required()
        self._refusal_timer = None
        self.app_state, self.headers = {}, []
        self.cycle = self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._refusal_timer is None:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed, or exceeds a limit."""
        self._refuse_in_time(lambda: self._refuse(self.conn.fault or 400))

    def _refuse_in_time(self, refuse: Callable[[], None]) -> None:
        """Refuse at the pace of the client's network; until then nothing is read from the connection."""
        wait = self.pace.wait(network_of(self.client[0] if self.client else ""))
        if wait <= 0:
            refuse()
            return
        self._drop_deadline()
        self._unset_keepalive_if_required()
        self.conn.drop_data()
        self.flow.pause_reading()
        self._refusal_timer = self.loop.call_later(wait, refuse)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self.limits.body_seconds, self._reset)

    def _reset(self) -> None:
        """Reset the connection; after an orderly close the kernel would keep the unsent data."""
        # A linger of 0 seconds makes the close a reset.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def on_response_complete(self) -> None:
        """Continue with the next request, unless the connection is closing."""
        if self.transport.is_closing():
            _resume_reading(self.flow)
        super().on_response_complete()

    def handle_events(self) -> None:
        """Process received bytes, new ones or those that waited for a response."""
        super().handle_events()
        self._update_deadline()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to `BoundedWebSocket`."""
        self._is_handed_over = True
        self._drop_deadline()
        self.resume_writing()
        # The WebSocket library fails without a response if a line exceeds 8 KiB.
        if is_large_head(event.target.decode("latin-1"), self.headers, min(self.limits.head_bytes, 8_000)):
            self._refuse_in_time(lambda: self._refuse(431))
        else:
            super().handle_websocket_upgrade(event)
            self.conn.drop_data()

    def _trust(self, client: str) -> bool:
        # The descriptor of a lost connection may belong to another one now; for a WebSocket only the transport knows.
        return self._descriptor is None or self.transport.is_closing() or self.counts.trust(self._descriptor, client)

    def _update_deadline(self) -> None:
        """Set the deadline for the current state of the client."""
        state = self.conn.their_state
        if state is self._deadline_state or self._is_handed_over or self._refusal_timer is not None:
            return
        self._drop_deadline()
        seconds = {h11.IDLE: self.limits.head_seconds, h11.SEND_BODY: self.limits.body_seconds}.get(state)
        if seconds is not None and not self.transport.is_closing():
            self._deadline_state = state
            self._deadline = self.loop.call_later(seconds, self._end_late)

    def _drop_deadline(self) -> None:
        self._deadline_state = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late(self) -> None:
        if self.conn.trailing_data[0] or self.conn.their_state is h11.SEND_BODY:
            self._refuse(408)
        elif not self.transport.is_closing():
            if self._descriptor is not None:
                self.counts.close(self._descriptor)
            self.transport.close()

    def _refuse(self, status: int) -> None:
        """Respond in place of the app, unless its response has begun, and close."""
        if self.transport.is_closing():
            return
        _resume_reading(self.flow)
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"reason": REASONS[status]}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        # A refused head was not parsed: `scope` is then that of the previous request.
        is_head = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
        answer = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase)
        for event in (answer, h11.Data(data=b"" if is_head else body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket with bounded memory per client."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self.app_state[CLIENT_LEFT].set_result(None)
        self.conn.reader.discard()
        self.frames = []

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """End the connection with the app."""
        super().on_task_complete(task)
        _resume_reading(self.transport)

    async def send(self, message: Any) -> None:
        """Drop the refusal of a handshake whose client has disconnected meanwhile."""
        if self.handshake_complete or not self.conn.eof_sent:
            await super().send(message)

    def send_500_response(self) -> None:
        """Skip a client whose connection was closed already; uvicorn would fail."""
        if not self.conn.eof_sent:
            super().send_500_response()

    def handle_ping(self) -> None:
        """Leave pings of a client that does not read unanswered."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Any) -> None:
        """Accept another frame of a message, up to `MAX_FRAMES`."""
        if len(self.frames) < MAX_FRAMES:
            super().handle_cont(event)
        else:
            self.frames = []
            self.conn.fail(1009, f"a message of more than {MAX_FRAMES} frames")
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """End the connection, even before the handshake, which uvicorn assumes to be done."""
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
        else:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1002})
            self.transport.close()


def _resume_reading(paused: FlowControl | asyncio.Transport) -> None:
    """Resume reading from a closing connection: with TLS and unread data, a close alone would not end it."""
    # asyncio's TLS transport is empty after a second close.
    with contextlib.suppress(AttributeError):
        paused.resume_reading()


def bounded_http(limits: ConnectionLimits, counts: ConnectionCounts) -> type[BoundedHttp]:
    """Return the connection class of one server, for uvicorn."""
    return type("BoundedHttp", (BoundedHttp,), {"limits": limits, "counts": counts, "pace": Pace()})
