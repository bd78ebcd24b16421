"""Clients that watch a topic, by the hundred in one event loop, and a minimal server as the floor.

Neighbour: `benchmarks.controller`. The clients read bare sockets, so that they cost little beside the server that is
measured. `python -m benchmarks.watchers` is the floor: a server that speaks frames without HTTP, and sends the same
bytes to all who are connected when one of them sends it their number as a line.
"""

import asyncio
import base64
import os
import socket
import time
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["events", "socket", "floor"]
"""Server-sent events, WebSocket, or frames without HTTP."""

_UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    # Which clients offer unless they are told not to.
    "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nSec-WebSocket-Key: {key}\r\n"
)
_PING, _PONG = 0x89, b"\x8a"


class Watcher(asyncio.Protocol):
    """Watching client; `seen` has the `time.perf_counter` instants at which each message was complete."""

    def __init__(self, kind: Kind, request: bytes) -> None:
        self._kind, self._request = kind, request
        self._read = b""
        self._transport: asyncio.Transport | None = None
        self.seen: list[float] = []
        self.bytes = 0
        """Bytes of the newest message on the wire."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while end := self._first_end():
            part, self._read = self._read[:end], self._read[end:]
            if part.startswith(b"HTTP/1.1"):
                assert part[9:12] in (b"200", b"101"), part
            elif self._kind != "events" and part[0] == _PING:
                self.send(_PONG + bytes([0x80 | len(part) - 2]) + bytes(4) + part[2:])
            elif self._kind != "events" or b"event: layout" in part:
                self.seen.append(time.perf_counter())
                self.bytes = end

    def send(self, data: bytes) -> None:
        """Write to the server."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        """End the connection at once."""
        assert self._transport is not None
        self._transport.abort()

    def _first_end(self) -> int:
        """Return the end of the first head, chunk or frame in the buffer; 0 while it is incomplete."""
        read = self._read
        if read.startswith(b"HTTP/1.1"):
            return read.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in read else 0
        if self._kind == "events":
            line = read.find(b"\r\n")
            end = line + 2 + int(read[:line], 16) + 2 if line > 0 else 0
        elif len(read) < 2:
            return 0
        elif (length := read[1]) < 126:
            end = 2 + length
        else:
            width = 2 if length == 126 else 8
            end = 2 + width + int.from_bytes(read[2 : 2 + width], "big")
        return end if len(read) >= end else 0


async def watch(url: str, path: str, kinds: Sequence[Kind]) -> list[Watcher]:
    """A client of each kind, all connected, and each with its first message."""
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    watchers = []
    for kind in kinds:
        upgrade = _UPGRADE.format(key=base64.b64encode(os.urandom(16)).decode()) if kind == "socket" else ""
        request = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n{upgrade}\r\n" if kind != "floor" else ""
        watcher = Watcher(kind, request.encode())
        await loop.create_connection(lambda watcher=watcher: watcher, address.hostname, address.port)  # type: ignore[misc]
        watchers.append(watcher)
    await all_have(watchers, 1)
    return watchers


async def all_have(watchers: Sequence[Watcher], messages: int, deadline_s: float = 60) -> None:
    """Waits until every client has that many messages."""
    end = time.monotonic() + deadline_s
    while any(len(watcher.seen) < messages for watcher in watchers):
        if time.monotonic() > end:
            missing = sum(len(watcher.seen) < messages for watcher in watchers)
            raise SystemExit(f"{missing} of {len(watchers)} clients never got message {messages}")
        await asyncio.sleep(0.01)


async def serve_floor() -> None:
    """Serve until the process is ended; prints the URL."""
    connected: set[asyncio.StreamWriter] = set()

    def frame(size: int) -> bytes:
        return b"\x82\x7f" + size.to_bytes(8, "big") + bytes(size)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.add(writer)
        writer.write(frame(1))
        while line := await reader.readline():
            message = frame(int(line))
            for connection in connected:
                connection.write(message)
        connected.discard(writer)
        writer.close()

    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = await asyncio.start_server(serve, sock=listening)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve_floor())
