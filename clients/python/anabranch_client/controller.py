"""Connections to the controller: layouts over HTTP, and WebSockets for watch and consumer sessions.

A token goes to configured addresses only, to other ports of this machine if a controller runs there, and by https to a
configured host: a redirect to any other address is refused.
"""

import contextlib
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from websockets.exceptions import InvalidStatus, WebSocketException

from anabranch_client.config import ControllerAccess
from anabranch_client.errors import (
    AnabranchError,
    ControllerUnavailable,
    IncompatibleController,
    NotAuthorized,
    TopicNotFound,
)
from anabranch_client.layout import Layout
from anabranch_client.names import admin_path, full_name
from anabranch_client.session import MAX_MESSAGE_BYTES, ControllerSession

OPEN_SECONDS = 10.0
"""Longest wait for a connection, and for the answer to a request."""
MAX_REDIRECTS = 5
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}

T = TypeVar("T")


class Controller:
    """The nodes of a controller; thread-safe. Holds no connection of its own."""

    def __init__(self, settings: ControllerAccess) -> None:
        """Raises `ClientSettingsError`."""
        self._settings = settings
        self._tls = settings.tls() if any(url.startswith("https:") for url in settings.urls) or settings.ca else None

    def layout(self, topic: str) -> Layout:
        """Return the current layout. Raises `AnabranchError`."""
        body = self._anywhere(topic, lambda url: self._get(url + admin_path(topic), topic))
        try:
            record = json.loads(body)
        except ValueError as error:
            raise IncompatibleController(
                f"the layout of {topic} is not JSON: is this a controller's address?"
            ) from error
        return Layout.from_record(topic, record)

    def open(self, topic: str, route: str, base: str = "") -> ControllerSession:
        """Open a WebSocket at `route` of a topic, like `/watch`; follow redirects to the leader.

        The calling thread has to receive. `base` is tried before the configured addresses. Raises `AnabranchError`.
        """
        path = admin_path(topic) + route
        bases = (base,) if base and self._admits(base) else ()
        return self._anywhere(topic, lambda url: self._open(url + path, topic), bases)

    def _anywhere(self, topic: str, call: Callable[[str], T], first: tuple[str, ...] = ()) -> T:
        """Return the answer of the first node that is available."""
        errors = []
        for url in dict.fromkeys((*first, *self._settings.urls)):
            try:
                return call(url)
            except ControllerUnavailable as error:
                errors.append(f"{url}: {error}")
        raise ControllerUnavailable(
            f"no controller answers for {full_name(topic)} ({'; '.join(errors)}): start it, or correct "
            "anabranch.controller.url"
        )

    def _open(self, url: str, topic: str) -> ControllerSession:
        for _ in range(MAX_REDIRECTS + 1):
            headers = self._settings.headers()
            try:
                return ControllerSession(
                    "ws" + url.removeprefix("http"), _connected(url), self._tls, headers, OPEN_SECONDS
                )
            except (OSError, ValueError, WebSocketException) as error:
                refused = next((e for e in (error, error.__context__) if isinstance(e, InvalidStatus)), None)
                if refused is None:
                    raise ControllerUnavailable(str(error) or type(error).__name__) from error
                response = refused.response
                location = response.headers.get("Location")
                url = self._next(url, topic, response.status_code, location, bytes(response.body or b""))
        raise ControllerUnavailable("too many redirects")

    def _get(self, url: str, topic: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            parts, connection = urlsplit(url), self._connection(url)
            with contextlib.closing(connection):
                try:
                    connection.request("GET", parts.path, headers=self._settings.headers())
                    response = connection.getresponse()
                    body = response.read(MAX_MESSAGE_BYTES)
                except (OSError, http.client.HTTPException) as error:
                    raise ControllerUnavailable(str(error) or type(error).__name__) from error
            if response.status == 200:
                return body
            url = self._next(url, topic, response.status, response.getheader("Location"), body)
        raise ControllerUnavailable("too many redirects")

    def _connection(self, url: str) -> http.client.HTTPConnection:
        host, port = _address(url)
        if url.startswith("https:"):
            return http.client.HTTPSConnection(host, port, timeout=OPEN_SECONDS, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=OPEN_SECONDS)

    def _next(self, url: str, topic: str, status: int, location: str | None, body: bytes) -> str:
        """Return the address that a refused request is sent to next; raise the typed error if there is none."""
        if status in (307, 308) and location:
            location = urljoin(url, location)
            if location.startswith(("ws:", "wss:")):
                location = "http" + location.removeprefix("ws")
            if not self._admits(location):
                raise NotAuthorized(
                    f"{url} redirects to {location}, which may not see the token: add it to anabranch.controller.url"
                )
            return location
        raise refusal(topic, status, _reason(body))

    def _admits(self, url: str) -> bool:
        """Return whether the token may be sent to an address."""
        target = urlsplit(url)
        if target.scheme not in _PORTS or not target.hostname or target.username:
            return False
        bases = [urlsplit(base) for base in self._settings.urls]
        if not self._settings.headers():
            return target.scheme == "https" or all(base.scheme == "http" for base in bases)
        if any((base.scheme, base.netloc) == (target.scheme, target.netloc) for base in bases):
            return True
        if target.scheme == "http":
            return target.hostname in _THIS_MACHINE and bases[0].hostname in _THIS_MACHINE
        return any(base.hostname == target.hostname for base in bases)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _connected(url: str) -> socket.socket:
    return socket.create_connection(_address(url), OPEN_SECONDS)


def refusal(topic: str, status: int, reason: str) -> AnabranchError:
    """Return the error for a status with which the controller refused a request."""
    if status == 404:
        return TopicNotFound(full_name(topic))
    if status in (401, 403):
        return NotAuthorized(f"the controller refuses access to {topic} ({status} {reason}): check its token")
    if status == 429 or status >= 500:
        return ControllerUnavailable(f"{status} {reason}")
    return IncompatibleController(
        f"the controller refuses a request of this client ({status} {reason}): use a client of its version"
    )


def _reason(body: bytes) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(body).get("reason", ""))[:500]
    return body[:200].decode("utf-8", "replace")


def read_message(text: str | bytes) -> Any:
    """Return the JSON of a message. Raises `IncompatibleController`."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise IncompatibleController(f"the controller sent {text[:100]!r}, which is not JSON") from error
