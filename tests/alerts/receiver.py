"""A receiver of webhooks on loopback that answers as a test says, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What came, and what is answered: `status`, with `headers`, or what `answers` makes of the body."""

    def __init__(self) -> None:
        self.came: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answers: Callable[[Any], tuple[int, dict[str, str]]] = lambda _: (self.status, self.headers)
        self.url = ""

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.came]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            body = json.loads(raw)
            receiver.came.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
            status, headers = receiver.answers(body)
            self.send_response(status)
            for name, value in {"Content-Length": "2", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"no" if status >= 300 else b"ok")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
