"""An S3 server for tests: one bucket in memory, conditional puts, a record of all requests, and faults.

A process of its own (`python -m tests.lake.object_store`): delta-rs holds the interpreter's lock while it waits.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Literal, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request as Call
from urllib.request import urlopen
from xml.sax.saxutils import escape, unescape

import pytest

from anabranch.local.processes import tethered

BUCKET = "/bucket"
Fault = Literal["", "refused", "answer lost", "condition ignored"]
"""A put is answered with 503 before or after it is stored, or commits overwrite others, two at a time."""


class Request(NamedTuple):
    """A request, as it was answered. A listing has the method LIST, and its prefix as key."""

    method: str
    key: str
    status: int


class ObjectStore:
    """The server's process, and what tests ask of it."""

    def __init__(self) -> None:
        command = tethered([sys.executable, "-m", "tests.lake.object_store"])
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which delta-rs reaches it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def requests(self) -> list[Request]:
        """Return the requests since the last time."""
        with urlopen(f"{self.url}/requests", timeout=60) as answer:
            return [Request(*request) for request in json.load(answer)]

    def keys(self) -> list[str]:
        """Return the names of all objects."""
        with urlopen(f"{self.url}/keys", timeout=60) as answer:
            names: list[str] = json.load(answer)
        return names

    def put(self, key: str, body: bytes) -> None:
        """Store an object."""
        urlopen(Call(f"{self.url}{BUCKET}/{quote(key)}", body, method="PUT"), timeout=60).close()

    def delete(self, key: str) -> None:
        """Delete an object."""
        urlopen(Call(f"{self.url}{BUCKET}/{quote(key)}", method="DELETE"), timeout=60).close()

    def fail_puts(self, fault: Fault, every: int = 1) -> None:
        """Let one put in some fail."""
        body = json.dumps([fault, every]).encode()
        urlopen(Call(f"{self.url}/fault", body, method="PUT"), timeout=60).close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Yield a store that delta-rs reaches by its variables; for a fixture."""
    store = ObjectStore()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    yield store
    store.close()


class _Store(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.modified_at: dict[str, float] = {}
        """By key, seconds since 1970: whoever cleans Delta's log goes by it."""
        self.requests: list[Request] = []
        self.fault: tuple[Fault, int] = ("", 1)
        self.puts = count(1)
        self.parts: dict[str, dict[int, bytes]] = {}
        """Of uploads in parts, by key: one at a time."""
        self.pair = threading.Barrier(2)
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Store

    def do_GET(self) -> None:
        if self.path == "/requests":
            requests, self.server.requests = self.server.requests, []
            self._answer("", "", 200, json.dumps(requests).encode())
            return
        if self.path == "/keys":
            self._answer("", "", 200, json.dumps(sorted(self.server.objects)).encode())
            return
        if "list-type" in self._query:
            self._answer("LIST", self._query.get("prefix", ""), 200, self._listing(self._query))
        else:
            self._object("GET")

    def do_HEAD(self) -> None:
        self._object("HEAD")

    def do_PUT(self) -> None:
        store, key = self.server, self._key
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/fault":
            store.fault, store.puts = tuple(json.loads(body)), count(1)
            self._answer("", "", 200)
            return
        fault, every = store.fault
        fails = fault in ("refused", "answer lost") and next(store.puts) % every == 0
        if fault == "condition ignored" and "_delta_log" in key and not key.endswith(f"{0:020}.json"):
            store.pair.wait(30)
        exists = False
        if not (fails and fault == "refused"):
            with store.lock:
                exists = key in store.objects and self.headers["If-None-Match"] == "*" and fault != "condition ignored"
                if "partNumber" in self._query:
                    store.parts.setdefault(key, {})[int(self._query["partNumber"])] = body
                elif not exists:
                    store.objects[key], store.modified_at[key] = body, time.time()
        self._answer("PUT", key, 503 if fails else 412 if exists else 200)

    def do_POST(self) -> None:
        request = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        store, key = self.server, self._key
        if "delete" in self._query:
            keys = [unescape(name) for name in re.findall(r"<Key>(.*?)</Key>", request)]
            with store.lock:
                for name in keys:
                    store.objects.pop(name, None)
            deleted = (f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in keys)
            body = f"<DeleteResult>{''.join(deleted)}</DeleteResult>"
        elif "uploadId" not in self._query:
            body = f"<InitiateMultipartUploadResult><UploadId>{escape(key)}</UploadId></InitiateMultipartUploadResult>"
        else:
            with store.lock:
                store.objects[key] = b"".join(part for _, part in sorted(store.parts.pop(key).items()))
                store.modified_at[key] = time.time()
            body = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        self._answer("POST", key, 200, body.encode())

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.objects.pop(self._key, None)
        self._answer("DELETE", self._key, 204)

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"{BUCKET}/")

    @property
    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}

    def _object(self, method: str) -> None:
        content = self.server.objects.get(self._key)
        if content is None:
            self._answer(method, self._key, 404)
        elif method == "GET" and (span := self.headers["Range"]):
            first, _, last = span.removeprefix("bytes=").partition("-")
            start = int(first) if first else len(content) - int(last)
            end = min(int(last), len(content) - 1) if first and last else len(content) - 1
            more = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
            self._answer(method, self._key, 206, content[start : end + 1], more)
        else:
            self._answer(method, self._key, 200, content)

    def _listing(self, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        with self.server.lock:
            sizes = {key: len(body) for key, body in self.server.objects.items()}
            times = {key: datetime.fromtimestamp(self.server.modified_at[key], timezone.utc) for key in sizes}
        keys, folders = [], set()
        for key in sorted(key for key in sizes if key.startswith(prefix) and key > after):
            folder, delimiter, _ = key[len(prefix) :].partition("/")
            if "delimiter" in query and delimiter:
                folders.add(f"{prefix}{folder}/")
            else:
                keys.append(key)
        contents = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>{times[key]:%FT%TZ}</LastModified><ETag>1</ETag>"
            f"<Size>{sizes[key]}</Size></Contents>"
            for key in keys
        ]
        contents += [
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)
        ]
        return f"<ListBucketResult>{''.join(contents)}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()

    def _answer(
        self, method: str, key: str, status: int, body: bytes = b"", more: dict[str, str] | None = None
    ) -> None:
        if method:
            self.server.requests.append(Request(method, key, status))
        self.send_response(status)
        modified = formatdate(self.server.modified_at.get(key, 0), usegmt=True)
        headers = {"Content-Length": str(len(body)), "Last-Modified": modified, "ETag": '"1"', **(more or {})}
        for name, value in headers.items():
            if status != 204 or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


if __name__ == "__main__":
    server = _Store()
    print(server.server_port, flush=True)
    server.serve_forever()
