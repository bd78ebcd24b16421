"""Checks that every request passes before routing: host and origin, token, size of the body.

Routing uses the raw path, so that an encoded slash stays inside its segment; `anabranch.controller.topic_names` decodes
the segments. The whole body is read here, up to a bound, so that no endpoint waits for a sender.
"""

import logging

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anabranch.auth.callers import CALLER, STRANGER, Access, Caller
from anabranch.auth.spelling import SpellingError, check_length
from anabranch.controller.errors import TooMany
from anabranch.controller.limits.clients import LimitedClients
from runtime.listener.anonymous import AnonymousClients, end_turn, raw_path, refusal_of, trusted_refusal
from runtime.listener.bodies import BrokenOff, read_body, replay_body
from runtime.listener.connections import ListenerLimits
from runtime.listener.names import NodeNames, is_form

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1_048_576
"""Largest accepted request body."""
OPEN_PATHS = frozenset({"/healthz"})
"""Paths that need no token, body or turn."""


class RequestGate:
    """Admits a request if it is not a cross-site one, its caller is known and its size is within bounds.

    Every request that may change something is logged with its caller and status.
    """

    def __init__(
        self, app: ASGIApp, access: Access, names: NodeNames, clients: LimitedClients, anonymous: AnonymousClients
    ) -> None:
        """`anonymous` queues responses to requests without a token."""
        self._app = app
        self._access, self._names = access, names
        self._clients, self._anonymous = clients, anonymous

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = raw_path(scope)
        headers = dict(scope["headers"])
        caller = self._access.caller(headers.get(b"authorization", b""))
        refused = refusal_of(scope, self._names, ListenerLimits.head_bytes)
        if refused is None and caller is not None:
            excess = trusted_refusal(scope, caller.name)
            refused = None if path in OPEN_PATHS else excess
        refusal = None if refused is None else _refused(refused.status, refused.reason, **refused.headers)
        if refusal is None and path in OPEN_PATHS:
            # A probe waits for nobody else: it has a thread of its own and shares one look at the store.
            if caller is None and not await self._anonymous.probe(scope):
                return
            await self._app({**scope, CALLER: caller or STRANGER}, receive, send)
            return
        if refusal is None and caller is None:
            refusal = _refused(
                401, "this needs the header Authorization: Bearer <token>", **{"WWW-Authenticate": "Bearer"}
            )
        if refusal is None:
            refusal = _refusal_of_length(path)
        try:
            if refusal is not None:
                async with self._anonymous.turn(scope, is_paced=True) as turn:
                    await refusal(scope, receive, end_turn(turn, send))
            elif caller is not None:
                scope = {**scope, "path": path, CALLER: caller}
                if self._access.is_guarded and scope.get("method") not in ("GET", "HEAD"):
                    send = _logged(send, f"{scope.get('method', 'WebSocket')} {path[:500]}", caller)
                await self._let_in(caller, headers, scope, receive, send)
        except TooMany as error:
            await _refused(error.status, error.reason, **{"Retry-After": str(error.retry_seconds)})(
                scope, receive, send
            )
        except BrokenOff:
            return

    async def _let_in(
        self, caller: Caller, headers: dict[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward a request once its body is read and it has its turn. Raises `TooMany` or `BrokenOff`."""
        client = self._clients.client(caller.name)
        with client.waiting() as count:
            body: bytes | None = b""
            if scope["type"] == "http":
                length = headers.get(b"content-length", b"0")
                too_long = length.isdigit() and int(length) > MAX_BODY_BYTES
                body = None if too_long else await read_body(receive, MAX_BODY_BYTES, count)
            if body is None:
                await _refused(413, f"the body is larger than {MAX_BODY_BYTES} bytes")(scope, receive, send)
                return
            if body and is_form(headers.get(b"content-type", b"")):
                reason = "a body is JSON: send it with Content-Type: application/json"
                await _refused(415, reason)(scope, receive, send)
                return
            if scope["type"] == "http":
                receive = replay_body(body, receive)
            async with self._clients.turns.turn(caller.name) as turn:
                await self._app(scope, receive, end_turn(turn, send))


def _refusal_of_length(path: str) -> Response | None:
    """Refuse a path that no name can have before it is routed, which takes milliseconds for a long one."""
    try:
        check_length(max(path.split("/"), key=len))
    except SpellingError as error:
        return _refused(412, str(error))
    return None


def _refused(status: int, reason: str, **headers: str) -> Response:
    return JSONResponse({"reason": reason}, status, headers)


def _logged(send: Send, request: str, caller: Caller) -> Send:
    """Wrap `send` to log the status that it sends."""

    async def tell(message: Message) -> None:
        if message["type"].endswith("response.start") or message["type"] == "websocket.accept":
            log.info("%s by %s (%s): %d", request, caller.name, caller.role, message.get("status", 101))
        await send(message)

    return tell
