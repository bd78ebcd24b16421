"""A small HTTP server that sends exactly the bytes that a test gives it, valid HTTP or not."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CERTIFICATE = Path(__file__).parent / "localhost.pem"
"""For `localhost` alone, signed by itself, with its key: `openssl req -x509 -newkey ec …`."""

Send = Callable[[bytes], bool]
"""Sends bytes; whether the client is still there and the test is not over."""
Script = bytes | Callable[[Send], None]
"""What is sent for a request; the connection is closed afterwards."""


def http(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A proper answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def dribble(start: bytes, every_s: float = 0.02, end: bytes = b"") -> Script:
    """`start` at once, then endlessly a byte now and then, or the bytes of `end`."""

    def script(send: Send) -> None:
        pause = threading.Event()
        send(start)
        for byte in iter(lambda: b"a", None) if not end else (bytes([one]) for one in end):
            if not send(byte):
                return
            pause.wait(every_s)

    return script


@dataclass
class Server:
    """The running server."""

    url: str
    asked: list[str] = field(default_factory=list)
    """The head of each request."""
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(*scripts: Script, tls: bool = False, host: str = "127.0.0.1") -> Iterator[Server]:
    """A server that gives these answers in turn, one a connection, and repeats the last one."""
    listening = socket.create_server((host, 0), backlog=50)
    port = listening.getsockname()[1]
    server = Server(f"https://localhost:{port}" if tls else f"http://{host}:{port}")
    left = list(scripts)

    def answer(connection: socket.socket) -> None:
        def send(data: bytes) -> bool:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                return not server.over.is_set()
            return False

        with contextlib.suppress(OSError), connection:
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(CERTIFICATE)
                connection = context.wrap_socket(connection, server_side=True)
            server.asked.append(_request(connection))
            script = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(script, bytes):
                send(script)
            else:
                script(send)
            connection.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def _request(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65536)
        if not received:
            return ""
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.decode().lower().split("\r\n"):
        if line.startswith("content-length:"):
            missing = int(line.partition(":")[2]) - len(body)
            while missing > 0:
                missing -= len(connection.recv(65536))
    return head.decode()
