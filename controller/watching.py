"""Watch sessions over HTTP: the layout of a topic at once and every later one (PIP-468 "DAG Watch Sessions").

Stage: between the store, which tells every committed layout in the order of the commits, and clients. `WatchHub` says
who gets what; here it is carried, as server-sent events and over WebSocket, both at `…/{topic}/watch`. Each message is
whole:

`{"topic": "topic://…", "epoch": 3, "controllerBrokerUrl": "http://…", "segmentBrokers": {"4": "http:…"}, "layout": …}`

`segmentBrokers` names the owner of every active segment, which is the node that answers as long as there is only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Header, Query, Response, WebSocket
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from controller.access import READ
from controller.errors import BadRequest, NotFound
from controller.names import topic_of_path
from controller.store import LayoutStore
from controller.watch import CloseReason, Update, WatchHub, WatchSession
from schemas.metadata import ScalableTopicMetadata

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
"""Longest silence of an event stream: a comment is sent, so that both ends notice when the other one is gone."""
LAST_SECONDS = 1.0
"""Time for a message that is being sent when its session ends."""
CLOSE_CODES = {
    CloseReason.LEFT: 1000,
    CloseReason.SLOW: 1013,
    CloseReason.AHEAD: 1000,
    CloseReason.DELETED: 4404,
    CloseReason.STOPPED: 1012,
}
"""The WebSocket close code of each reason (RFC 6455; 4404 is ours)."""

_EPOCH = re.compile(r"[0-9]{1,18}", re.ASCII)


def watch_update(topic: str, metadata: ScalableTopicMetadata, url: str) -> Update:
    """The message for those who watch `topic`, of a controller at `url`."""
    about = {
        "topic": topic,
        "epoch": metadata.epoch,
        "controllerBrokerUrl": url,
        "segmentBrokers": {id: url for id, segment in metadata.segments.items() if segment.state == "ACTIVE"},
    }
    return Update(metadata.epoch, f'{json.dumps(about)[:-1]}, "layout": {metadata.to_json()}}}')


class Watching:
    """The hub of a controller at `url`, fed with all that `store` commits between `start` and `stop`."""

    def __init__(self, store: LayoutStore, url: str) -> None:
        self.hub = WatchHub(self._load)
        self._store = store
        self._url = url

    def start(self) -> None:
        """Called in the event loop that the sessions live in."""
        loop = asyncio.get_running_loop()

        def committed(topic: str, metadata: ScalableTopicMetadata | None) -> None:
            # At the very end of the process the loop may be closed already; nobody watches any more then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._publish, topic, metadata)

        self._store.on_layout.append(committed)

    def stop(self) -> None:
        """Ends all sessions; harmless when done before."""
        self.hub.stop()

    async def session(self, topic: str, since: int | None) -> WatchSession:
        """A session from the epoch after `since`, or from the layout as it is when that is older; `NotFound`."""
        session = await self.hub.subscribe(topic, since)
        if session.closed_because is CloseReason.AHEAD:
            # The topic was deleted and made again: what the client knows is of another life.
            session = await self.hub.subscribe(topic)
        return session

    def _publish(self, topic: str, metadata: ScalableTopicMetadata | None) -> None:
        if metadata is None:
            self.hub.forget(topic)
        elif self.hub.is_watched(topic):
            self.hub.publish(topic, watch_update(topic, metadata, self._url))

    async def _load(self, topic: str) -> Update:
        return await asyncio.to_thread(self._loaded, topic)

    def _loaded(self, topic: str) -> Update:
        with self._store.read() as view:
            stored = view.topic(topic)
        if stored is None:
            raise NotFound(f"Scalable topic not found: {topic}")
        return watch_update(topic, stored.metadata, self._url)


class EventStream(Response):
    """A session as server-sent events; the id of each is its epoch."""

    media_type = "text/event-stream"

    def __init__(self, session: WatchSession) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._session = session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._session):
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
                reason = await carry(self._session, write_all(), _gone(receive))
            finally:
                still.cancel()
            if reason is CloseReason.SLOW:
                log.warning("a client that watches %s does not keep up and is cut off", self._session.topic)
            elif reason is not CloseReason.LEFT:
                await write(f"event: closed\ndata: {json.dumps({'reason': reason.value})}\n\n", False)


async def carry(session: WatchSession, sending: Awaitable[None], gone: Awaitable[None]) -> CloseReason:
    """Send until the session ends, for whatever reason, or the client is `gone`; nobody is waited for who is stuck."""
    sender, leaver = asyncio.ensure_future(sending), asyncio.ensure_future(gone)
    end = asyncio.ensure_future(session.until_closed())
    try:
        await asyncio.wait({sender, leaver, end}, return_when=asyncio.FIRST_COMPLETED)
        if end.done() and not leaver.done():
            await asyncio.wait({sender}, timeout=0 if session.closed_because is CloseReason.SLOW else LAST_SECONDS)
    finally:
        for task in (sender, leaver, end):
            task.cancel()
        await asyncio.gather(sender, leaver, end, return_exceptions=True)
    stuck = sender.cancelled()
    session.close()
    assert session.closed_because is not None
    return CloseReason.SLOW if stuck and not leaver.done() else session.closed_because


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def _watching(connection: HTTPConnection) -> Watching:
    return cast(Watching, connection.app.state.watching)


async def _topic(tenant: str, namespace: str, topic: str) -> str:
    return topic_of_path(tenant, namespace, topic)


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


Hub = Annotated[Watching, Depends(_watching)]
Topic = Annotated[str, Depends(_topic)]
Since = Annotated[int | None, Depends(_since)]

routes = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["watch"])


@routes.get("/{topic}/watch", dependencies=READ, response_class=Response)
async def watch(watching: Hub, topic: Topic, since: Since) -> Response:
    """Server-sent events: `layout` at once and after every change, `closed` at the end (not in Pulsar's REST)."""
    return EventStream(await watching.session(topic, since))


@routes.websocket("/{topic}/watch", dependencies=READ)
async def watch_socket(socket: WebSocket, watching: Hub, topic: Topic, since: Since) -> None:
    """The same messages over WebSocket; what the client sends is not read."""
    with contextlib.closing(await watching.session(topic, since)) as session:
        await socket.accept()

        async def send_all() -> None:
            async for update in session:
                await socket.send_text(update.layout)

        reason = await carry(session, send_all(), _gone(socket.receive))
        if reason is not CloseReason.LEFT:
            with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):
                await asyncio.wait_for(socket.close(CLOSE_CODES[reason], reason.value), LAST_SECONDS)
