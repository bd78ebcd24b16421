"""A gate in front of a real controller, for the faults that it cannot show by itself: answers that are lost, late, or
of another server's making. What is not told otherwise goes through and comes back as it is: by httpx, and not by the
admin client, which would follow redirects and is itself what the gate tests.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tests.controller.plain_http import PLAIN

ILLEGAL_ARGUMENT = (
    '{"reason":"\\n --- An unexpected error occurred in the server ---\\n\\nMessage: Cannot split range of size 1\\n\\n'
    "Stacktrace:\\n\\njava.lang.IllegalStateException: Cannot split range of size 1\\n"
    '\\tat org.apache.pulsar.common.scalable.HashRange.split(HashRange.java:73)\\n"}'
)
"""How Pulsar 5.0.0 answers (500) a split of a segment of width 1 (the transcript of its REST interface)."""


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Fault:
    """What becomes of one request."""

    reaches: bool = True
    """Whether the controller gets it."""
    answer: tuple[int, str] | None = None
    """Status and body instead of the controller's."""
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False
    """The connection is closed instead of an answer."""
    hangs: bool = False
    """No answer before the gate is closed."""
    dribbles: bool = False
    """An answer that never ends, a byte at a time."""


LOST_BEFORE = Fault(reaches=False, closes=True)
LOST_AFTER = Fault(closes=True)
HANGS = Fault(reaches=False, hangs=True)
HANGS_AFTER = Fault(hangs=True)
DRIBBLES = Fault(dribbles=True)


def answers(status: int, body: str = "", reaches: bool = False, **headers: str) -> Fault:
    """An answer of the gate's own."""
    return Fault(reaches=reaches, answer=(status, body), headers=headers)


class Gate:
    """The running gate at `url`."""

    def __init__(self, upstream: str) -> None:
        self._client = httpx.Client(base_url=upstream, timeout=30, verify=PLAIN)
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._always: list[tuple[str, Callable[[str], bool], Fault]] = []
        self._before: dict[str, Callable[[], object]] = {}
        self.requests: list[Request] = []
        self.drops_layout = False
        """Whether what is behind it knows nothing of the layout that a call is meant for, as a Pulsar."""
        self.released = threading.Event()
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                gate._handle(self)

            do_POST = do_PUT = do_DELETE = do_GET

            def handle(self) -> None:
                with suppress(ConnectionError, httpx.TransportError):
                    super().handle()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def on(self, method: str, *faults: Fault) -> None:
        """The next requests of this method meet these faults, one each."""
        self._faults[method].extend(faults)

    def before_next(self, method: str, happens: Callable[[], object]) -> None:
        """What happens at the server right before the next request of this method reaches it."""
        self._before[method] = happens

    def always(self, method: str, fault: Fault, path: Callable[[str], bool] = lambda _: True) -> None:
        """Every request of this method to such a path meets this fault."""
        self._always.append((method, path, fault))

    def heal(self) -> None:
        """No faults any more."""
        self._always.clear()

    def count(self, method: str, part: str = "") -> int:
        """How many requests came."""
        return sum(request.method == method and part in request.path for request in self.requests)

    def close(self) -> None:
        """Stop, and release hanging requests."""
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._client.close()

    def _fault(self, method: str, path: str) -> Fault:
        for one_method, matches, fault in self._always:
            if one_method == method and matches(path):
                return fault
        return self._faults[method].popleft() if self._faults[method] else Fault()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        sent = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, handler.path, headers))
        self._before.pop(handler.command, lambda: None)()
        fault = self._fault(handler.command, handler.path)
        (status, body), location = fault.answer or (0, ""), None
        if fault.reaches:
            names = (
                "authorization",
                "content-type",
                "x-anabranch-decision",
                *([] if self.drops_layout else ["x-anabranch-layout"]),
            )
            kept = {name: headers[name] for name in names if name in headers}
            answer = self._client.request(handler.command, handler.path, headers=kept, content=sent)
            if fault.answer is None:
                status, body, location = answer.status_code, answer.text, answer.headers.get("location")
        if fault.hangs:
            self.released.wait()
        if fault.hangs or fault.closes:
            handler.close_connection = True
            return
        handler.send_response(status)
        if fault.dribbles:
            handler.send_header("content-length", "1000000")
            handler.end_headers()
            while not self.released.wait(0.02):
                handler.wfile.write(b" ")
            return
        for name, value in {**fault.headers, **({"location": location} if location else {})}.items():
            handler.send_header(name, value)
        payload = body.encode()
        if status != 204:
            handler.send_header("content-length", str(len(payload)))
        handler.end_headers()
        if status != 204:
            handler.wfile.write(payload)


@contextmanager
def open_gate(upstream: str) -> Iterator[Gate]:
    """A gate to `upstream` until the end of the block."""
    gate = Gate(upstream)
    try:
        yield gate
    finally:
        gate.close()
