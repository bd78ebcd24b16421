"""What every request passes before it is routed: who is called, whose token it carries, the size of its body.

Stage: around the app. Routing goes by the raw path, so that an encoded slash stays inside its segment;
`controller.topic_names` decodes the segments. The whole body is read here, up to a bound, so that no endpoint
waits for a sender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import quote

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.access.callers import CALLER, STRANGER, Access, Caller
from controller.access.names import NodeNames, is_form
from controller.errors import TooMany
from controller.limits.clients import Clients
from controller.limits.connections import network_of
from controller.limits.protocol import TOO_LARGE_HEAD, is_large_head
from controller.limits.turns import Turn, Turns

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
        self,
        app: ASGIApp,
        access: Access,
        names: NodeNames,
        clients: Clients,
        strangers: Turns,
        max_head_bytes: int,
        max_body_bytes: int,
    ) -> None:
        """`strangers`: the turns of what is answered without a token, by address."""
        self._app = app
        self._access, self._names = access, names
        self._clients, self._strangers = clients, strangers
        self._max_head_bytes, self._max_body_bytes = max_head_bytes, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = _raw_path(scope)
        headers = dict(scope["headers"])
        caller = self._access.caller(headers.get(b"authorization", b""))
        refusal = self._refusal(scope, path)
        if refusal is None and path in OPEN_PATHS:
            # A probe waits for nobody: it has a thread of its own and shares one look at the store.
            await self._app({**scope, CALLER: caller or STRANGER}, receive, send)
            return
        if refusal is None and caller is None:
            refusal = _refused(
                401, "this needs the header Authorization: Bearer <token>", **{"WWW-Authenticate": "Bearer"}
            )
        try:
            if refusal is not None:
                async with self._strangers.turn(network_of(str((scope.get("client") or [""])[0]))) as turn:
                    await refusal(scope, receive, _ending(turn, send))
            elif caller is not None:
                scope = {**scope, "path": path, CALLER: caller}
                if self._access.is_guarded and scope.get("method") not in ("GET", "HEAD"):
                    send = _logged(send, f"{scope.get('method', 'WebSocket')} {path[:500]}", caller)
                await self._let_in(caller, headers, scope, receive, send)
        except TooMany as error:
            await _refused(error.status, error.reason, **{"Retry-After": str(error.retry_seconds)})(
                scope, receive, send
            )
        except _BrokenOff:
            return

    def _refusal(self, scope: Scope, path: str) -> Response | None:
        """What no token would change."""
        if is_large_head(path + scope["query_string"].decode("latin-1"), scope["headers"], self._max_head_bytes):
            return _refused(431, TOO_LARGE_HEAD)
        reason = self._names.refusal(scope["headers"])
        return None if reason is None else _refused(403, reason)

    async def _let_in(
        self, caller: Caller, headers: dict[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Have a caller's request answered, once its body is there and it has its turn. `TooMany`, `_BrokenOff`."""
        client = self._clients.client(caller.name)
        with client.waiting() as count:
            body: bytes | None = b""
            if scope["type"] == "http":
                length = headers.get(b"content-length", b"0")
                too_long = length.isdigit() and int(length) > self._max_body_bytes
                body = None if too_long else await self._body(receive, count)
            if body is None:
                await _refused(413, f"the body is larger than {self._max_body_bytes} bytes")(scope, receive, send)
                return
            if body and is_form(headers.get(b"content-type", b"")):
                reason = "a body is JSON: send it with Content-Type: application/json"
                await _refused(415, reason)(scope, receive, send)
                return
            pending = [body] if scope["type"] == "http" else []

            async def replay() -> Message:
                if pending:
                    return {"type": "http.request", "body": pending.pop(), "more_body": False}
                return await receive()

            async with self._clients.turns.turn(caller.name) as turn:
                await self._app(scope, replay, _ending(turn, send))

    async def _body(self, receive: Receive, count: Callable[[int], None]) -> bytes | None:
        """The whole body; None when it is too large. Raises `_BrokenOff` when its sender has left before the end.

        What has come of it counts from then on, as a sender may take its time. `TooMany`.
        """
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _BrokenOff
            chunk = message.get("body", b"")
            if len(body) + len(chunk) > self._max_body_bytes:
                return None
            count(len(chunk))
            body += chunk
            if not message.get("more_body", False):
                return bytes(body)


def _refused(status: int, reason: str, **headers: str) -> Response:
    return JSONResponse({"reason": reason}, status, headers)


def _ending(turn: Turn, send: Send) -> Send:
    """Return `send`, which ends the turn when the answer begins.

    From there on a call takes only the time that its client takes to read: a stream, or somebody who reads nothing.
    """

    async def first(message: Message) -> None:
        turn.end()
        await send(message)

    return first


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
