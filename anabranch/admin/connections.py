"""Connections to servers: pooled, optionally with TLS, and bounded by a deadline, byte by byte.

Stage: under `transport`, `credentials` and `anabranch.alerts.posting`. An HTTP library's time-outs bound the silence
between two bytes, so a server that sends single bytes slowly, in the head or in the body, would block a caller forever.
Here every wait is limited to the remaining time; only the look-up of a host name takes as long as the system allows.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

KEEP_ALIVE_SECONDS = 3.0
"""Shorter than a server's own (uvicorn: 5 s), so that no call uses a connection that is being closed."""

_may_send: ContextVar[Callable[[], bool] | None] = ContextVar("may_send", default=None)
"""Permission of this thread's requests, asked before each write to a connection: see `only_while`."""
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
"""Deadline of this thread's calls, on the clock `time.monotonic`."""


class Closed(Exception):
    """The connections were closed before."""


class Withheld(Exception):
    """The request may no longer be sent: see `only_while`."""


class Connections(httpx.BaseTransport):
    """Sends requests on pooled connections, one at a time on each; thread-safe.

    Raises the faults of `httpcore`. Follows no redirects and keeps no cookies.
    """

    def __init__(self, tls: ssl.SSLContext, resolve: Callable[[str, int], str] | None = None) -> None:
        """`resolve` returns the address to connect to for a host and port; None: the system's.

        It raises `httpcore.ConnectError` for one that is not allowed.
        """
        self._closed = threading.Event()
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=None,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            network_backend=_Backend(resolve, self._closed),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the head of the response; the caller reads the body and closes the response."""
        if self._closed.is_set():
            raise Closed("the client is closed")
        url = httpcore.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        answer = self._pool.handle_request(
            httpcore.Request(
                request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
            )
        )
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream),
            extensions=answer.extensions,
            request=request,
        )

    def close(self) -> None:
        """Drop all connections; a thread that waits on one, or is about to, gets a fault."""
        self._closed.set()
        self._pool.close()


@contextmanager
def deadline_in(seconds: float) -> Iterator[None]:
    """Bound all waits of this thread on `Connections` together; after that they time out."""
    before = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(before)


@contextmanager
def only_while(may_send: Callable[[], bool]) -> Iterator[None]:
    """Raise `Withheld` instead of writing bytes of this thread's requests once `may_send` says no.

    `may_send` is called before every write: of a request's head, of each part of its body. It is not called when the
    request is made, as opening the connection may take long and the permission may end meanwhile.
    """
    before = _may_send.set(may_send)
    try:
        yield
    finally:
        _may_send.reset(before)


def _time_left(silence: float | None, late: type[Exception]) -> float | None:
    """Return the longest wait now, seconds; `silence` limits one wait."""
    if (deadline := _deadline.get()) is None:
        return silence
    left = deadline - time.monotonic()
    if left <= 0:
        raise late("no whole answer in time")
    return left if silence is None else min(left, silence)


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        self._stream.close()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, resolve: Callable[[str, int], str] | None, closed: threading.Event) -> None:
        self._plain, self._resolve, self._closed = httpcore.SyncBackend(), resolve, closed

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _time_left(timeout, httpcore.ConnectTimeout)
        try:
            address = host if self._resolve is None else self._resolve(host, port)
            return _Stream(self._plain.connect_tcp(address, port, left, local_address, socket_options), self._closed)
        except (UnicodeError, OverflowError) as error:  # a host or port that a redirect has made up
            raise httpcore.ConnectError(f"{host[:100]}:{port}: {error}") from None


class _Stream(httpcore.NetworkStream):
    """One connection, used by one thread at a time and closed by any.

    While a thread uses the socket, any other thread only shuts it down. That ends every wait, and the using thread
    closes the socket. If another closed it, the system could give its number to the next connection, and a thread
    about to wait on that number would wait on, and read from, a connection of somebody else.
    """

    def __init__(self, plain: httpcore.NetworkStream, closed: threading.Event) -> None:
        """`closed`: set once no thread may begin to use any connection."""
        self._plain, self._all_closed = plain, closed
        self._lock = threading.Lock()
        self._in_use = self._was_closed = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = _time_left(timeout, httpcore.ReadTimeout)
        with self._used(httpcore.ReadError):
            return self._plain.read(max_bytes, left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:  # the library ends a request so, when all of it has been sent: too late to withhold it
            return
        left, may_send = _time_left(timeout, httpcore.WriteTimeout), _may_send.get()
        if may_send is not None and not may_send():
            raise Withheld("the connection was open too late: nothing was sent")
        with self._used(httpcore.WriteError):
            self._plain.write(buffer, left)

    def close(self) -> None:
        with self._lock:
            self._was_closed = True
            if not self._in_use:
                self._plain.close()
            else:
                with contextlib.suppress(OSError):
                    # Not the method of a TLS socket, which would also take its TLS state from the using thread.
                    socket.socket.shutdown(self._plain.get_extra_info("socket"), socket.SHUT_RDWR)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _time_left(timeout, httpcore.ConnectTimeout)
        with self._used(httpcore.ConnectError):
            return _Stream(self._plain.start_tls(ssl_context, server_hostname, left), self._all_closed)

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)

    @contextmanager
    def _used(self, fault: type[Exception]) -> Iterator[None]:
        with self._lock:
            if self._was_closed or self._all_closed.is_set():
                raise fault("the client is closed")
            self._in_use = True
        try:
            yield
        finally:
            with self._lock:
                self._in_use = False
                if self._was_closed:
                    self._plain.close()
