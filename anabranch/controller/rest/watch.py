"""Routes of watch sessions: server-sent events and WebSocket (PIP-468 "DAG Watch Sessions").

Stage: any node serves any session; `anabranch.controller.watch.layout_watcher` defines the messages.
"""

import asyncio
import contextlib
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response, WebSocket
from starlette.websockets import WebSocketDisconnect

from anabranch.controller.access.grants import Granted
from anabranch.controller.access.roles import READ
from anabranch.controller.errors import BadRequest
from anabranch.controller.rest.parameters import Topic, Watcher
from anabranch.controller.watch.hub import CloseReason
from anabranch.controller.watch.transport import CLOSE_CODES, MAX_SEND_SECONDS, EventStream, carry, gone, held

_EPOCH = re.compile(r"[0-9]{1,18}", re.ASCII)


async def _since(
    last_event_id: Annotated[str | None, Header(description="The last epoch that the client has.")] = None,
    since: Annotated[str | None, Query(description="The same, for clients that cannot set a header.")] = None,
) -> int | None:
    text = last_event_id or since
    if not text:
        return None
    if not _EPOCH.fullmatch(text):
        raise BadRequest(f"Last-Event-ID and since are an epoch, a whole number, got: {text[:200]}")
    return int(text)


Since = Annotated[int | None, Depends(_since)]

routes = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["watch"])


@routes.get("/{topic}/watch", dependencies=READ, response_class=Response)
async def watch(watcher: Watcher, topic: Topic, since: Since, grant: Granted) -> Response:
    """Send server-sent events: `layout` now and after every change, `closed` at the end (not in Pulsar)."""
    return EventStream(await watcher.session(topic, since), grant)


@routes.websocket("/{topic}/watch", dependencies=READ)
async def watch_socket(socket: WebSocket, watcher: Watcher, topic: Topic, since: Since, grant: Granted) -> None:
    """Send the same messages over WebSocket; the client's messages are ignored."""
    with contextlib.closing(await watcher.session(topic, since)) as session, held(grant, session):
        await socket.accept()

        async def send_all() -> None:
            async for update in session:
                await socket.send_text(update.layout)

        reason = await carry(session, send_all(), gone(socket.receive))
        if reason is not CloseReason.LEFT:
            with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):
                await asyncio.wait_for(socket.close(CLOSE_CODES[reason], reason.value), MAX_SEND_SECONDS)
