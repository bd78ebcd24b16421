"""What every request passes before it is routed: who is called, whose token it carries, the size of its body.

Stage: around the app. Routing goes by the raw path, so that an encoded slash stays inside its segment;
`controller.topic_names` decodes the segments. The whole body is read here, up to a bound, so that no endpoint
waits for a sender.
"""

from __future__ import annotations

import logging
from urllib.parse import quote

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.access.callers import CALLER, STRANGER, Access, Caller
from controller.access.names import NodeNames, is_form
from controller.errors import TooMany
from controller.limits.protocol import TOO_LARGE_HEAD, is_large_head
from controller.limits.turns import Turns

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz"})
"""Paths that need no token, no body and no turn."""


class _BrokenOff(Exception):
    """The client is gone."""


class RequestGate:
    """Lets a request in when no page of a stranger sends it, its caller is known and it is small enough.

    Every request that is more than a read is logged: who asked for what, and what was answered.
    """

    def __init__(
        self, app: ASGIApp, access: Access, names: NodeNames, turns: Turns, max_head_bytes: int, max_body_bytes: int
    ) -> None:
        self._app = app
        self._access = access
        self._names = names
        self._turns = turns
        self._max_head_bytes, self._max_body_bytes = max_head_bytes, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = _raw_path(scope)
        if is_large_head(path, scope["headers"], self._max_head_bytes):
            await JSONResponse({"reason": TOO_LARGE_HEAD}, 431)(scope, receive, send)
            return
        refusal = self._names.refusal(scope["headers"])
        if refusal is not None:
            await JSONResponse({"reason": refusal}, 403)(scope, receive, send)
            return
        headers = dict(scope["headers"])
        caller = self._access.caller(headers.get(b"authorization", b""))
        if path in OPEN_PATHS:
            # At once, whatever waits for its turn.
            await self._app({**scope, CALLER: caller or STRANGER}, receive, send)
            return
        if caller is None:
            unknown = JSONResponse({"reason": "this needs the header Authorization: Bearer <token>"}, 401)
            unknown.headers["WWW-Authenticate"] = "Bearer"
            await unknown(scope, receive, send)
            return
        scope = {**scope, "path": path, CALLER: caller}
        if self._access.is_guarded and scope.get("method") not in ("GET", "HEAD"):
            send = _logged(send, f"{scope.get('method', 'WebSocket')} {path[:500]}", caller)
        if scope["type"] == "websocket":
            await self._in_turn(caller, scope, receive, send)
            return
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            body = None
        else:
            try:
                body = await self._body(receive)
            except _BrokenOff:
                return
        if body is None:
            reason = f"the body is larger than {self._max_body_bytes} bytes"
            await JSONResponse({"reason": reason}, 413)(scope, receive, send)
            return
        if body and is_form(headers.get(b"content-type", b"")):
            reason = "a body is JSON: send it with Content-Type: application/json"
            await JSONResponse({"reason": reason}, 415)(scope, receive, send)
            return
        pending = [body]

        async def replay() -> Message:
            if pending:
                return {"type": "http.request", "body": pending.pop(), "more_body": False}
            return await receive()

        await self._in_turn(caller, scope, replay, send)

    async def _in_turn(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the request answered; it has its turn until the answer begins, which a session outlives."""
        try:
            async with self._turns.turn(caller.name) as turn:

                async def first(message: Message) -> None:
                    if message["type"] != "http.response.start":
                        turn.end()
                    await send(message)

                await self._app(scope, receive, first)
        except TooMany as error:
            refusal = JSONResponse({"reason": error.reason}, error.status, {"Retry-After": str(error.retry_seconds)})
            await refusal(scope, receive, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None when it is too large. Raises `_BrokenOff` when its sender has left before the end."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _BrokenOff
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._max_body_bytes:
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


def _logged(send: Send, what: str, caller: Caller) -> Send:
    """`send`, with a line in the log of the status that it sends."""

    async def tell(message: Message) -> None:
        if message["type"].endswith("response.start") or message["type"] == "websocket.accept":
            log.info("%s by %s (%s): %d", what, caller.name, caller.role, message.get("status", 101))
        await send(message)

    return tell


def _raw_path(scope: Scope) -> str:
    raw = scope.get("raw_path")
    return raw.decode("ascii", "replace") if raw is not None else quote(scope["path"])
