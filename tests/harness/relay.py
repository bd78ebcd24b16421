"""A TCP relay on loopback: connections between a client and a server that can be cut, or get no answer.

Stage: between clients and ZooKeeper or Kafka in tests of faults that a healthy network does not show.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType


class Relay:
    """Pass bytes between clients of `address` and the server at `port`, until told otherwise."""

    def __init__(self, port: int) -> None:
        """`port`: of the server on loopback."""
        self._port, self._loop = port, asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.swallow = 0
        """So many of the next connections are accepted and get no answer."""
        self.swallowed = 0

    def __enter__(self) -> Relay:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Reset all connections that are open now."""

        async def reset() -> None:
            for writer in self._open:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(reset(), self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        if self.swallow:
            self.swallow -= 1
            self.swallowed += 1
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open.add(server_writer)
        await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))
        self._open -= {writer, server_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until either side ends, then end the other."""
    try:
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
