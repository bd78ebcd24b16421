"""One bounded exchange with an admin interface: address, token, TLS, redirects, time and size.

The only module that sends anything. It never retries, and never raises for a fault of a server or the network.
"""

import contextlib
import copy
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpcore
import httpx

from anabranch.admin.answers import Lost, Misdirected, NotConnected, Response, Unanswered
from anabranch.admin.connections import Closed, Connections, Withheld, deadline_in
from anabranch.admin.credentials import Credentials, FixedToken, NoToken, credentials_of
from anabranch.admin.redirects import MAX_REDIRECTS, REDIRECTS, TokenAddresses, next_hop
from schemas.addresses import read_authority
from schemas.settings.root import Settings
from schemas.tls import TlsFiles, client_context

MAX_BODY_BYTES = 128 * 1_048_576
"""Reading stops above this size: the largest accepted layout has 131,072 segments."""

ANNOUNCED_PATH = "/admin/v2/brokers"
"""Path of the list of a cluster's servers, in Pulsar and our controller."""
ASK_AGAIN_SECONDS = 10.0
"""Minimum time between two reads of that list."""

_SHOWN = 500


class BodyTooLarge(Exception):
    """The body exceeds `limit` bytes."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(f"the answer is larger than {limit or MAX_BODY_BYTES} bytes")


_NO_CONNECTION = (
    Closed,
    Withheld,
    NoToken,
    httpcore.ConnectError,
    httpcore.ConnectTimeout,
    httpcore.UnsupportedProtocol,
    httpx.InvalidURL,
)
NETWORK_FAULTS: tuple[type[Exception], ...] = (
    *_NO_CONNECTION,
    BodyTooLarge,
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpx.DecodingError,
    OSError,
)
"""Exceptions of `Transport.stream` when there is no complete response."""

Query = Mapping[str, str | Sequence[str]]


class BadAddress(ValueError):
    """The text is not the address of an admin interface."""


class PasswordInAddress(BadAddress):
    """The address contains a password; the message does not."""


def check_address(url: str) -> None:
    """Raise `BadAddress` unless `url` is like `http://127.0.0.1:8080`, optionally with a path."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise BadAddress(str(error)) from None
    if parsed.userinfo:
        raise PasswordInAddress("it holds a password")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise BadAddress(f"{url!r} is no address like http://127.0.0.1:8080")


class Transport:
    """Exchanges with one admin interface; thread-safe."""

    def __init__(
        self,
        url: str,
        token: str | Credentials | None,
        *,
        user_agent: str,
        timeout_seconds: float,
        deadline_seconds: float | None = None,
        tls: ssl.SSLContext | None = None,
        nodes: Sequence[str] = (),
        max_body_bytes: int | None = None,
    ) -> None:
        """`url` is the base, without `/admin/v2`; `nodes` are other base URLs that may get the token.

        `token` may also be a source of tokens; one that is refused as unknown (401) is then renewed once.
        `timeout_seconds` bounds every silence and `deadline_seconds` an exchange as a whole, redirects included;
        default: the same. `max_body_bytes` limits a response; default: `MAX_BODY_BYTES`. `tls` verifies certificates;
        default: as the system does.
        """
        self.url = url.rstrip("/")
        self._nodes = tuple(nodes)
        self._max_body_bytes = max_body_bytes
        self._deadline_seconds = deadline_seconds or timeout_seconds
        self._timeout = httpx.Timeout(timeout_seconds)
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": user_agent}
        self._credentials = FixedToken(token) if isinstance(token, str) and token else token or None
        self._token_addresses = TokenAddresses(self.url, nodes)
        self._asking = threading.Lock()
        self._ask_at = float("-inf")
        """Time at which the list of servers may be read again."""
        self._connections = Connections(tls or client_context(TlsFiles()))

    def exchange(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response | Unanswered:
        """Send a request, its path with a slash, its body JSON, and return the whole response, of any status."""
        asked = f"{method} {self.url}{path}"
        # Like Pulsar's own client, name the type of an empty body too.
        typed = {"Content-Type": "application/json"} if method in ("PUT", "POST") else {}
        try:
            with (
                deadline_in(self._deadline_seconds),
                self.stream(method, path, query, body, {**typed, **(headers or {})}) as answer,
            ):
                if isinstance(answer, Misdirected):
                    return answer
                return Response(
                    answer.status_code,
                    answer.reason_phrase,
                    _whole_body(answer, self._max_body_bytes or MAX_BODY_BYTES),
                    str(answer.url),
                    answer.encoding or "utf-8",
                )
        except NETWORK_FAULTS as error:
            return unanswered_reason(asked, error, may_be_done=method != "GET")

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        silence_seconds: float | None = None,
    ) -> Iterator[httpx.Response | Misdirected]:
        """Send one request and yield its response without the body, which must be read within the block.

        Raises `NETWORK_FAULTS`; only silences are bounded, here by `silence_seconds` instead of the default.
        """
        timeout = self._timeout if silence_seconds is None else httpx.Timeout(silence_seconds)
        hop = httpx.URL(self.url + path, params=query or None)
        token, was_renewed = self._token(), False
        redirects = 0
        while redirects <= MAX_REDIRECTS:
            sent = {**self._headers, **(headers or {}), **_authorization(token)}
            with self._send(method, hop, body, sent, timeout) as answer:
                if answer.status_code == 401 and not was_renewed and self._has_another(token):
                    # Refused before anything was done, so it can be repeated.
                    token, was_renewed = self._token(), True
                    continue
                if answer.status_code not in REDIRECTS:
                    yield answer
                    return
                location = answer.headers.get("location", "")
            redirects += 1
            if (following := next_hop(hop, location)) is None:
                yield Misdirected(f"{hop} redirects to {location[:200]!r}, which is not followed")
                return
            if token and not self._may_have_token(following, token):
                where = f"{following.scheme}://{following.netloc.decode('ascii', 'replace')[:200]}"
                yield Misdirected(
                    f"{hop} redirects to {where}, which the token is not sent to: if it belongs to the same cluster, "
                    "add it to controller.nodes"
                )
                return
            hop = following
        yield Misdirected(f"{self.url}: more than {MAX_REDIRECTS} redirects")

    def _send(
        self, method: str, url: httpx.URL, body: str | None, headers: Mapping[str, str], timeout: httpx.Timeout
    ) -> contextlib.closing[httpx.Response]:
        extensions = {"timeout": timeout.as_dict()}
        request = httpx.Request(method, url, content=body, headers=headers, extensions=extensions)
        return contextlib.closing(self._connections.handle_request(request))

    def _token(self) -> str | None:
        """Return the current token. Raises `NoToken`."""
        return None if self._credentials is None else self._credentials.token()

    def _has_another(self, refused: str | None) -> bool:
        return refused is not None and self._credentials is not None and self._credentials.renew(refused)

    def _may_have_token(self, url: httpx.URL, token: str) -> bool:
        """Return whether an address is configured, or announced by the base server over https."""
        if self._token_addresses.admit(url):
            return True
        base = httpx.URL(self.url + ANNOUNCED_PATH)
        if base.scheme != "https" or url.scheme != "https":
            return False
        with self._asking:
            if time.monotonic() > self._ask_at:
                self._ask_at = time.monotonic() + ASK_AGAIN_SECONDS
                # Without the list the redirect is not followed; the caller needs no further detail.
                with (
                    contextlib.suppress(*NETWORK_FAULTS),
                    self._send("GET", base, None, {**self._headers, **_authorization(token)}, self._timeout) as answer,
                ):
                    if answer.status_code == 200:
                        self._token_addresses.learn(_whole_body(answer, MAX_BODY_BYTES))
        return self._token_addresses.admit(url)

    def beside(self, broker: str) -> "Transport | Misdirected":
        """Return a transport to another server, announced as `host:port`; connections are shared.

        A configured address of that host takes precedence, else the scheme is that of the base. Returns a fault if this
        is not an address, or one that may not get the token.
        """
        base = httpx.URL(self.url)
        if read_authority(broker) is None:
            return Misdirected(f"{self.url} lists a broker that cannot be called: {broker[:200]!r} is no host:port")
        address = httpx.URL(f"{base.scheme}://{broker}")
        configured = [node.rstrip("/") for node in (self.url, *self._nodes) if _is_of(node, address)]
        url = configured[0] if configured else f"{base.scheme}://{broker}"
        try:
            with deadline_in(self._deadline_seconds):
                token = self._token()
                admitted = token is None or self._may_have_token(httpx.URL(url), token)
        except NETWORK_FAULTS as error:
            return Misdirected(f"{url}: {error}")
        if not admitted:
            return Misdirected(
                f"the token is not sent to the broker {url}, which is announced without TLS: add it to controller.nodes"
            )
        other = copy.copy(self)
        other.url = url
        return other

    def close(self) -> None:
        """Drops all connections; calls that wait for an answer end with `Lost`, later ones are not sent."""
        self._connections.close()


def _authorization(token: str | None) -> dict[str, str]:
    """Return the headers of a token; Pulsar's clients use this method name for OAuth2 too."""
    return {} if token is None else {"Authorization": f"Bearer {token}", "X-Pulsar-Auth-Method-Name": "token"}


def _is_of(node: str, announced: httpx.URL) -> bool:
    """Return whether a configured address has the announced server's host, and its port or another scheme."""
    try:
        url = httpx.URL(node)
    except httpx.InvalidURL:
        return False
    return url.host == announced.host and (url.port == announced.port or url.scheme != announced.scheme)


def unanswered_reason(asked: str, error: Exception, may_be_done: bool) -> NotConnected | Lost:
    """Return the value for one of `NETWORK_FAULTS`."""
    if isinstance(error, _NO_CONNECTION):
        why = f"no token: {error}" if isinstance(error, NoToken) else str(error)
        return NotConnected(asked, why[:_SHOWN])
    why = str(error) if isinstance(error, BodyTooLarge) else f"{type(error).__name__}: {error}"
    return Lost(asked, why[:_SHOWN], may_be_done)


def _whole_body(answer: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)


def controller_transport(
    settings: Settings, user_agent: str, timeout_seconds: float, *, with_token: bool = True, **limits: Any
) -> Transport:
    """Open the interface at `[controller] url`; `limits` as of `Transport`. Raises `SettingsError`."""
    token = credentials_of(settings) if with_token else None
    return Transport(
        settings.controller.url,
        token,
        user_agent=user_agent,
        timeout_seconds=timeout_seconds,
        tls=settings.url_context(),
        nodes=settings.controller.nodes,
        **limits,
    )
