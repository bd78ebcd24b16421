"""Anonymous clients at full speed: `python -m benchmarks.anonymous_attack KIND PORT SOURCES TOKEN`.

Stage: under `benchmarks.anonymous`. Runs until it is ended. `SOURCES`: addresses of 127.0.0.0/8 to come from.
"""

import resource
import selectors
import socket
import sys
import time
from contextlib import suppress

CONNECTIONS = 1_000
"""Of silent clients, and those that never read; others have a fifth of it."""
RECONNECT_SECONDS = 0.02
"""Between two attempts of one connection that was closed."""


def requests(kind: str, port: int, token: str) -> bytes:
    """Bytes that one connection sends, again and again."""
    host = f"Host: 127.0.0.1:{port}\r\n"
    if kind == "cookies":
        return f'GET /healthz HTTP/1.1\r\n{host}Cookie: anabranch="'.encode() + b"\\" * 60_000 + b'"\r\n\r\n'
    if kind == "percent":
        path = "/admin/v2/scalable/%" + "25" * 7_500 + "/shop"
        return f"GET {path} HTTP/1.1\r\n{host}Authorization: Bearer {token}\r\n\r\n".encode()
    return f"GET /admin/v2/scalable/acme/shop HTTP/1.1\r\n{host}\r\n".encode() * 50


def attack(kind: str, port: int, sources: int, token: str) -> None:
    """Never returns."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = CONNECTIONS if kind in ("silent", "unread") else CONNECTIONS // 5
    sent, waiting = requests(kind, port, token), selectors.DefaultSelector()
    due: list[tuple[float, int]] = [(0.0, number) for number in range(count)]
    while True:
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, number = due.pop(0)
            client = socket.socket()
            client.setblocking(False)
            if kind == "unread":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            source = f"127.0.{1 + number % sources // 200}.{1 + number % sources % 200}"
            with suppress(OSError):
                client.bind((source, 0))
                client.connect_ex(("127.0.0.1", port))
            events = selectors.EVENT_READ if kind == "silent" else selectors.EVENT_READ | selectors.EVENT_WRITE
            waiting.register(client, selectors.EVENT_WRITE if kind == "unread" else events, [number, 0])
        for key, mask in waiting.select(0.02):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                if mask & selectors.EVENT_WRITE:
                    key.data[1] += connection.send(sent[key.data[1] % len(sent) :])
                if mask & selectors.EVENT_READ and not connection.recv(65_536):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                waiting.unregister(connection)
                connection.close()
                due.append((time.monotonic() + RECONNECT_SECONDS, key.data[0]))


if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
