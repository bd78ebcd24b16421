"""Admin interface that answers at once and records each call, so that only the executor takes time.

Stage: a process under `benchmarks.executor`. Layouts are real ones (`decisions.topic.layout`), in memory, made when
they are first asked for, all with one creation time and `SEGMENTS` segments: so splits can be decided on beforehand.
`python -m benchmarks.interface` prints its URL; `GET /calls` has all calls: decision, topic, Unix seconds.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from decisions.topic.layout import LayoutError, SegmentLayout

CREATED_MS = 1_763_660_000_000
SEGMENTS = 4
"""Of each topic at first."""
ROOT = "/admin/v2/scalable/"


class Interface:
    """All layouts and all calls."""

    def __init__(self) -> None:
        self._layouts: dict[str, SegmentLayout] = {}
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str, float]] = []

    def layout(self, topic: str) -> SegmentLayout:
        """Return the topic's current layout."""
        return self._layouts.setdefault(topic, SegmentLayout.create(SEGMENTS, CREATED_MS))

    def split(self, topic: str, segment: int, decision: str, called_at: float) -> None:
        """Split a segment and record the call; raises `LayoutError`."""
        with self._lock:
            self.calls.append((decision, topic, called_at))
            self._layouts[topic] = self.layout(topic).split_segment(segment, CREATED_MS)


def serve(interface: Interface) -> ThreadingHTTPServer:
    """A server at a free port of loopback, not started."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            is_calls, topic = self.path == "/calls", self.path.removeprefix(ROOT)
            self._answer(
                200, json.dumps(interface.calls) if is_calls else interface.layout(topic).to_metadata().to_json()
            )

        def do_POST(self) -> None:
            called_at = time.time()
            topic, _, segment = self.path.removeprefix(ROOT).rpartition("/split/")
            try:
                interface.split(topic, int(segment), self.headers["x-anabranch-decision"], called_at)
            except LayoutError as error:
                self._answer(409, json.dumps({"reason": str(error)}))
            else:
                self._answer(204, "")

        def _answer(self, status: int, body: str) -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            return

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


if __name__ == "__main__":
    server = serve(Interface())
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
