"""Transport of watch sessions: server-sent events, and code shared with WebSockets.

Stage: under `anabranch.controller.rest.watch`; `hub` has the sessions.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from anabranch.controller.access.grants import REVOKED, Grant
from anabranch.controller.watch.hub import CloseReason, WatchSession

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
"""Longest silence of an event stream; then a comment is sent, so that both ends detect a lost peer."""
MAX_SEND_SECONDS = 1.0
"""Time allowed for a message that is being sent when its session ends."""
CLOSE_CODES = {
    CloseReason.LEFT: 1000,
    CloseReason.SLOW: 1013,
    CloseReason.AHEAD: 1000,
    CloseReason.DELETED: 4404,
    CloseReason.STOPPED: 1012,
    CloseReason.REVOKED: REVOKED,
}
"""WebSocket close code of each reason (RFC 6455; codes from 4000 on are ours)."""


class EventStream(Response):
    """A session as server-sent events; the id of each is its epoch."""

    media_type = "text/event-stream"

    def __init__(self, session: WatchSession, grant: Grant) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._session, self._grant = session, grant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._session), held(self._grant, self._session):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

            async def write(text: str, more: bool = True) -> None:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

            async def write_all() -> None:
                async for update in self._session:
                    await write(f"id: {update.epoch}\nevent: layout\ndata: {update.layout}\n\n")

            async def keep_alive() -> None:
                while True:
                    await asyncio.sleep(KEEP_ALIVE_SECONDS)
                    await write(": \n\n")

            still = asyncio.create_task(keep_alive())
            try:
                reason = await carry(self._session, write_all(), gone(receive))
            finally:
                still.cancel()
            if reason is CloseReason.SLOW:
                log.warning("a client that watches %s does not keep up and is cut off", self._session.topic)
            elif reason is not CloseReason.LEFT:
                await write(f"event: closed\ndata: {json.dumps({'reason': reason.value})}\n\n", False)


@contextlib.contextmanager
def held(grant: Grant, session: WatchSession) -> Iterator[None]:
    """Count the session during the block, and end it when its token no longer allows it. Raises `TooMany`."""
    with grant.client.session(), grant.held(lambda: session.close(CloseReason.REVOKED)):
        yield


async def carry(session: WatchSession, sending: Awaitable[None], departure: Awaitable[None]) -> CloseReason:
    """Send until the session ends or the client's `departure`; does not wait for a client that is stuck."""
    sender, leaver = asyncio.ensure_future(sending), asyncio.ensure_future(departure)
    end = asyncio.ensure_future(session.until_closed())
    try:
        await asyncio.wait({sender, leaver, end}, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not leaver.done():
            await asyncio.wait({sender}, timeout=0 if session.closed_because is CloseReason.SLOW else MAX_SEND_SECONDS)
    finally:
        for task in (sender, leaver, end):
            task.cancel()
        await asyncio.gather(sender, leaver, end, return_exceptions=True)
    stuck = sender.cancelled()
    session.close()
    assert session.closed_because is not None
    return CloseReason.SLOW if stuck and not leaver.done() else session.closed_because


async def gone(receive: Callable[[], Awaitable[Message]]) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass
