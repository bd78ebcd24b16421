"""WebSocket to the controller that only one thread drives.

A TLS object must not be read in one thread and written in another: `websockets.sync` does, and loses a request now and
then. Here an event loop runs in the calls of the thread that opened the session; others may only ask it to leave.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

MAX_MESSAGE_BYTES = 128 * 1_048_576
"""Largest accepted message: a layout has at most 131,072 segments."""
CLOSE_SECONDS = 1
"""Longest wait for the controller's part in closing."""
_QUIET = logging.getLogger(f"{__name__}.websocket")
_QUIET.setLevel(logging.INFO)
"""Logger of the connections: at DEBUG websockets would log the headers, and with them the token."""


class ControllerSession:
    """An open WebSocket. All calls but `leave` belong to the thread that opened it."""

    def __init__(
        self,
        url: str,
        connection: socket.socket,
        tls: ssl.SSLContext | None,
        headers: Mapping[str, str],
        timeout_seconds: float,
    ) -> None:
        """Open it over `connection`; without `tls`, a `wss:` address needs a certificate that the system trusts.

        Raises `OSError`, `ValueError`, `WebSocketException`.
        """
        self._loop = asyncio.new_event_loop()

        async def open_socket() -> ClientConnection:
            return await connect(
                url,
                # With a socket of ours, websockets follows no redirects itself, to any host and without the token.
                sock=connection,
                ssl=(tls or True) if url.startswith("wss:") else None,
                additional_headers=headers,
                open_timeout=timeout_seconds,
                close_timeout=CLOSE_SECONDS,
                max_size=MAX_MESSAGE_BYTES,
                proxy=None,
                logger=_QUIET,
            )

        try:
            self._socket = self._loop.run_until_complete(open_socket())
        except BaseException:
            self._close_loop()
            connection.close()
            raise

    def send(self, text: str) -> None:
        """Send a message. Raises `ConnectionClosed`."""
        self._loop.run_until_complete(self._socket.send(text))

    def receive(self) -> str | bytes:
        """Wait for a message. Raises `ConnectionClosed`, also after `leave`."""
        return self._loop.run_until_complete(self._socket.recv())

    def leave(self, farewell: str = "") -> None:
        """Send a last message, if any, and end the session; for other threads, and does not wait."""
        try:
            self._loop.call_soon_threadsafe(self._begin_to_leave, farewell)
        except RuntimeError:
            # The loop is closed, and so is the session.
            return

    def close(self) -> None:
        """End the session and free it; idempotent."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._socket.close())
            self._close_loop()

    def _begin_to_leave(self, farewell: str) -> None:
        self._leaving = self._loop.create_task(self._leave(farewell))

    async def _leave(self, farewell: str) -> None:
        try:
            if farewell:
                await self._socket.send(farewell)
        except ConnectionClosed:
            return
        await self._socket.close()

    def _close_loop(self) -> None:
        """Let tasks and connections end, and close the loop."""

        async def end_tasks() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._loop.run_until_complete(end_tasks())
        # Transports that were aborted close their sockets in the next round.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def __enter__(self) -> "ControllerSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
