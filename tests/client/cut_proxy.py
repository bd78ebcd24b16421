"""TCP proxies whose connections can be cut, between clients and brokers. All run in one thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress


class CutProxies:
    """Forwards ports of loopback to others; a target that does not listen ends the connection."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        """`targets`: by the port that clients connect to."""
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self) -> None:
        """Reset all connections; new ones are accepted at once."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def close(self) -> None:
        """End all connections and the thread."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> None:
        for port in self._targets:
            await asyncio.start_server(self._forward, "127.0.0.1", port)

    async def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._targets[writer.get_extra_info("sockname")[1]]
        self._writers.add(writer)
        try:
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                self._writers.add(far_writer)
                try:
                    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
                finally:
                    self._writers.discard(far_writer)
                    far_writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the input, which ends the output."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
