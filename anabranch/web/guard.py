"""Access control: every request passes here before routing, and every response on its way back.

Stage: around the app. On loopback nobody needs a token; elsewhere `[web] tokens_file` has them, with the roles of the
controller: `read` sees, `operate` acts. A browser signs in once with a token and is known by a cookie; a program sends
`Authorization: Bearer`. Against pages of strangers: the names of `Host`, the origin of what is sent, a proof in each
form, and a strict content security policy.
"""

import re
from typing import Final
from urllib.parse import parse_qsl, quote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anabranch.auth.callers import ANYBODY, Access, Caller, Need
from anabranch.auth.tokens import Role
from anabranch.web.sessions import BrowserSessions
from anabranch.web.words import namespace_of
from runtime.listener.anonymous import AnonymousClients, end_turn, refusal_of, trusted_refusal
from runtime.listener.bodies import BrokenOff, read_body, replay_body
from runtime.listener.fair_queue import TooManyCalls, Turns
from runtime.listener.names import NodeNames

COOKIE: Final = "anabranch"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Its name with TLS: browsers take it from this very host only, over https."""
CALLER: Final = "anabranch.web.caller"
SESSION: Final = "anabranch.web.session"
VERSION: Final = "anabranch.web.version"
HEALTH: Final = "/healthz"
OPEN: Final = ("/static/", "/sign-in", HEALTH)
"""What begins so needs no token."""
MAX_FORM_BYTES: Final = 65_536
MAX_WAITING: Final = 64
"""Requests of one token, or without a token of one network, that wait for their turns."""
MAX_COOKIE_BYTES: Final = 8_192
_SESSIONS: Final = {
    name: re.compile(rf"(?:\A|; ?){name}=([A-Za-z0-9_-]{{43}})(?:\Z|;)".encode()) for name in (COOKIE, SECURE_COOKIE)
}
"""The one cookie that is ours. The standard parser takes time by the square of a hostile header."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: a form would then be sent with the origin null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class NotAllowed(Exception):
    """The caller may not do this; the message says what is missing."""

    status = 403


class BadForm(NotAllowed):
    """Form that cannot be read."""

    status = 400


class BrowserGuard:
    """The ASGI middleware; `names` are those by which browsers reach the page, `is_secure`: over https."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        names: NodeNames,
        sessions: BrowserSessions,
        is_secure: bool = False,
        max_head_bytes: int = 16_384,
    ) -> None:
        self._app, self._access, self._names, self._sessions = app, access, names, sessions
        self._max_head_bytes = max_head_bytes
        self._turns, self._anonymous = Turns(MAX_WAITING), AnonymousClients(Turns(MAX_WAITING))
        self._cookie = SECURE_COOKIE if is_secure else COOKIE
        self._headers = {**_HEADERS, **({"Strict-Transport-Security": "max-age=31536000"} if is_secure else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer, caller = self._refusal(scope), None
        if answer is None:
            session, caller = self._caller(scope)
            excess = None if caller is None else trusted_refusal(scope, caller.name)
            # Before anything is read: what changes from here on, the page has to hear of.
            scope = {**scope, CALLER: caller, SESSION: session, VERSION: scope["app"].state.fleet.version}
            if scope["path"] == HEALTH:
                if caller is not None or await self._anonymous.probe(scope):
                    await self._app(scope, receive, guarded)
                return
            if excess is not None:
                answer, caller = PlainTextResponse(excess.reason, excess.status, excess.headers), None
            elif caller is None and not scope["path"].startswith(OPEN):
                answer = _sign_in(scope)
        try:
            await self._answer(answer, caller, scope, receive, guarded)
        except TooManyCalls as error:
            await PlainTextResponse(str(error), 429, {"Retry-After": "1"})(scope, receive, guarded)
        except BrokenOff:
            return

    async def _answer(
        self, refusal: Response | None, caller: Caller | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass a request on after its body and its turn have come. Raises `TooManyCalls`, `BrokenOff`."""
        if refusal is None and scope["method"] == "POST":
            if (body := await read_body(receive, MAX_FORM_BYTES)) is None:
                refusal = PlainTextResponse("the form is too large", 400)
            else:
                receive = replay_body(body, receive)
        if caller is not None:
            async with self._turns.turn(caller.name) as turn:
                await (refusal or self._app)(scope, receive, end_turn(turn, send))
            return
        # Whoever signs in may be guessing tokens, and what needs no token costs as much as a refusal.
        async with self._anonymous.turn(scope, is_paced=True) as turn:
            await (refusal or self._app)(scope, receive, end_turn(turn, send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = scope["headers"]
        reading = scope["method"] in ("GET", "HEAD")
        if reading and {(b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")} <= set(headers):
            # Somebody follows a link that a colleague has sent; a frame of another site is no such thing.
            headers = [pair for pair in headers if pair[0] == b"host"]
        refused = refusal_of({**scope, "headers": headers}, self._names, self._max_head_bytes)
        if refused is not None:
            return PlainTextResponse(refused.reason, refused.status)
        return None if reading or scope["method"] == "POST" else PlainTextResponse("GET, HEAD and POST only", 405)

    def _caller(self, scope: Scope) -> tuple[str, Caller | None]:
        if not self._access.is_guarded:
            return "", ANYBODY
        headers = dict(scope["headers"])
        if b"authorization" in headers:
            return "", self._access.caller(headers[b"authorization"])
        self._access.follow_file()
        session = _session(self._cookie, headers.get(b"cookie", b""))
        # What an open page asks for by itself keeps no session alive.
        caller = self._sessions.caller(session, is_use=_is_navigation(headers))
        # The token may have been removed, or its role lowered, since.
        if caller is not None and not self._access.holds(caller):
            self._sessions.end(session)
            return "", None
        return session, caller


def is_signed_in(request: Request) -> bool:
    """Tell if the caller's token is still valid, and its session, if any, has not ended."""
    access: Access = request.app.state.access
    access.follow_file()
    session: str = request.scope[SESSION]
    sessions: BrowserSessions = request.app.state.sessions
    return access.holds(request.scope[CALLER]) and (not session or sessions.caller(session, is_use=False) is not None)


def allows(request: Request, role: Role, topic: str | None = None, namespace: str = "") -> bool:
    """Tell if the caller has a role for a topic, or for a namespace (`tenant/namespace`).

    Everything else (None, a cluster, a switch) belongs to no tenant: a token that is bound to tenants never opens it.
    """
    caller: Caller = request.scope[CALLER]
    access: Access = request.app.state.access
    if not access.is_guarded:
        return True
    scope = namespace or (namespace_of(topic) if topic is not None else "")
    return bool(scope or not caller.scope) and access.opens(caller, Need(role, scope))


def demand(request: Request, role: Role, topic: str | None = None, namespace: str = "") -> None:
    """Raise `NotAllowed` unless it is allowed."""
    if not allows(request, role, topic, namespace):
        caller: Caller = request.scope[CALLER]
        where = "here" if namespace or (topic and namespace_of(topic)) else "everywhere"
        raise NotAllowed(
            f"this needs a token with role {role} that counts {where}; {caller.name} has role {caller.role}"
        )


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form of this page. Raises `NotAllowed` for others, `BadForm` for nonsense."""
    form = await unproved_form(request)
    session: str = request.scope[SESSION]
    sessions: BrowserSessions = request.app.state.sessions
    # What comes with a header Authorization is sent by no browser on its own.
    if b"authorization" not in dict(request.scope["headers"]) and not sessions.is_proof(session, form.get("proof", "")):
        raise NotAllowed("this form is of another session: load the page again")
    return form


async def unproved_form(request: Request) -> dict[str, str]:
    """The fields of a form, whoever has made it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise BadForm("a form is expected")
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError as error:
        raise BadForm("the form cannot be read") from error


def _session(cookie: str, header: bytes) -> str:
    match = _SESSIONS[cookie].search(header) if len(header) <= MAX_COOKIE_BYTES else None
    return match[1].decode() if match else ""


def _sign_in(scope: Scope) -> Response:
    headers = dict(scope["headers"])
    if scope["method"] != "GET" or not _is_navigation(headers):
        reason = "this needs a token: sign in, or send the header Authorization: Bearer <token>"
        # An open page loads itself again, and so comes to the form for signing in.
        return PlainTextResponse(reason, 401, {"WWW-Authenticate": "Bearer", "HX-Refresh": "true"})
    asked = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
    return RedirectResponse(f"/sign-in?next={quote(asked, safe='')}", 303)


def _is_navigation(headers: dict[bytes, bytes]) -> bool:
    """Tell if a person loads a page or sends a form, rather than a script of an open page."""
    return b"text/html" in headers.get(b"accept", b"") and b"hx-request" not in headers
