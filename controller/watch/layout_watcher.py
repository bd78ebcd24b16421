"""Watch sessions over HTTP: the layout of a topic at once and every later one (PIP-468 "DAG Watch Sessions").

Stage: between the metadata store, whose watches say "look again" on every node, and clients: any node serves any
session. `WatchHub` says who gets what; here it is carried, as server-sent events and over WebSocket, both at
`…/{topic}/watch`. Each message is whole:

`{"topic": "topic://…", "epoch": 3, "controllerBrokerUrl": "http://…", "segmentBrokers": {"4": "http:…"}, "layout": …}`

`controllerBrokerUrl` is the leader, where consumers register; while there is none, the node that answers, which takes
over when it is asked. `segmentBrokers` names the node that answers for every active segment: the leader too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Header, Query, Response, WebSocket
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from controller.access.callers import READ
from controller.access.grants import REVOKED, Grant, Granted
from controller.errors import BadRequest, NotFound
from controller.metadata import store_paths
from controller.metadata.base import CallbackHandle, Kind, MetadataStore, StoreError
from controller.rest.topic_names import topic_of_path
from controller.watch.hub import CloseReason, LayoutUpdate, WatchHub, WatchSession

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
"""Longest silence of an event stream: a comment is sent, so that both ends notice when the other one is gone."""
AGAIN_SECONDS = 1.0
"""Time before a look at the store that failed is repeated."""
LAST_SECONDS = 1.0
"""Time for a message that is being sent when its session ends."""
CLOSE_CODES = {
    CloseReason.LEFT: 1000,
    CloseReason.SLOW: 1013,
    CloseReason.AHEAD: 1000,
    CloseReason.DELETED: 4404,
    CloseReason.STOPPED: 1012,
    CloseReason.REVOKED: REVOKED,
}
"""The WebSocket close code of each reason (RFC 6455; those from 4000 on are ours)."""

_EPOCH = re.compile(r"[0-9]{1,18}", re.ASCII)


def watch_update(topic: str, layout: str, url: str) -> LayoutUpdate:
    """The message for those who watch `topic`, whose controller is at `url`."""
    found = json.loads(layout)
    about = {
        "topic": topic,
        "epoch": found["epoch"],
        "controllerBrokerUrl": url,
        "segmentBrokers": {id: url for id, segment in found["segments"].items() if segment["state"] == "ACTIVE"},
    }
    return LayoutUpdate(found["epoch"], f'{json.dumps(about)[:-1]}, "layout": {layout}}}')


class LayoutWatcher:
    """The hub of the node at `url`, fed with what is in `nodes` for as long as somebody watches it."""

    def __init__(self, nodes: MetadataStore, url: str) -> None:
        self.hub = WatchHub(self._load, self._unwatch)
        self._nodes = nodes
        self._url = url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[str, asyncio.Future[list[CallbackHandle]]] = {}
        self._looking: set[str] = set()
        self._stale: set[str] = set()
        """Topics that are to be looked at again, those that are looked at just now included."""
        self._versions: dict[str, int] = {}
        """The version of the layout that was published last, of every topic that is watched."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Called in the event loop that the sessions live in."""
        self._loop = asyncio.get_running_loop()

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

    async def _load(self, topic: str) -> LayoutUpdate:
        if topic not in self._watches:
            self._watches[topic] = asyncio.ensure_future(asyncio.to_thread(self._watch, topic))
        await asyncio.shield(self._watches[topic])
        version, update = await asyncio.to_thread(self._read, topic)
        if update is None:
            raise NotFound(f"Scalable topic not found: {topic}")
        self._versions[topic] = max(version, self._versions.get(topic, 0))
        return update

    def _watch(self, topic: str) -> list[CallbackHandle]:
        """Before the first read, so that no change after it is missed."""

        def changed(_: str, kind: Kind) -> None:
            if kind is not Kind.CHILDREN and self._loop is not None:
                # At the very end of the process the loop may be closed already; nobody watches any more then.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._look_again, topic)

        return [self._nodes.watch(path, changed, below=False) for path in _paths(topic)]

    def _unwatch(self, topic: str) -> None:
        """Nobody watches any more; a failed watch is made again by the next one who does."""
        self._versions.pop(topic, None)
        watch = self._watches.pop(topic, None)
        if watch is not None:
            watch.add_done_callback(_cancel)

    def _look_again(self, topic: str) -> None:
        if self._loop is None or not self.hub.is_watched(topic):
            return
        # One look that has not begun yet sees the effects of any number of changes.
        self._stale.add(topic)
        if topic not in self._looking:
            self._looking.add(topic)
            task = self._loop.create_task(self._look_until_fresh(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look_until_fresh(self, topic: str) -> None:
        try:
            while topic in self._stale:
                self._stale.discard(topic)
                await self._look(topic)
        finally:
            self._looking.discard(topic)

    async def _look(self, topic: str) -> None:
        try:
            version, update = await asyncio.to_thread(self._read, topic)
        except StoreError as error:
            log.warning("%s cannot be looked at, trying again: %s", topic, error)
            if self._loop is not None:
                self._loop.call_later(AGAIN_SECONDS, self._look_again, topic)
            return
        if version < self._versions.get(topic, 0) or not self.hub.is_watched(topic):
            return
        if update is None or not self.hub.publish(topic, update):
            # Deleted, or deleted and made again: an epoch that goes back is another life of the name.
            self.hub.forget(topic)
        else:
            self._versions[topic] = version

    def _read(self, topic: str) -> tuple[int, LayoutUpdate | None]:
        layout, leader = self._nodes.get_all(_paths(topic))
        if layout is None or not layout.value:
            return (layout.version if layout else sys.maxsize), None
        url = leader.value.decode() if leader else self._url
        return layout.version, watch_update(topic, layout.value.decode(), url)


def _paths(topic: str) -> list[str]:
    return [store_paths.topic_path(topic), store_paths.leader_path(topic)]


def _cancel(watch: asyncio.Future[list[CallbackHandle]]) -> None:
    if not watch.cancelled() and watch.exception() is None:
        for subscription in watch.result():
            subscription.cancel()


class EventStream(Response):
    """A session as server-sent events; the id of each is its epoch."""

    media_type = "text/event-stream"

    def __init__(self, session: WatchSession, grant: Grant) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._session = session
        self._grant = grant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._session), _held(self._grant, self._session):
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


def _held(grant: Grant, session: WatchSession) -> contextlib.AbstractContextManager[None]:
    return grant.held(lambda: session.close(CloseReason.REVOKED))


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


async def _watching(connection: HTTPConnection) -> LayoutWatcher:
    return cast(LayoutWatcher, connection.app.state.watching)


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


Hub = Annotated[LayoutWatcher, Depends(_watching)]
Topic = Annotated[str, Depends(_topic)]
Since = Annotated[int | None, Depends(_since)]

routes = APIRouter(prefix="/admin/v2/scalable/{tenant}/{namespace}", tags=["watch"])


@routes.get("/{topic}/watch", dependencies=READ, response_class=Response)
async def watch(watching: Hub, topic: Topic, since: Since, grant: Granted) -> Response:
    """Server-sent events: `layout` at once and after every change, `closed` at the end (not in Pulsar's REST)."""
    return EventStream(await watching.session(topic, since), grant)


@routes.websocket("/{topic}/watch", dependencies=READ)
async def watch_socket(socket: WebSocket, watching: Hub, topic: Topic, since: Since, grant: Granted) -> None:
    """The same messages over WebSocket; what the client sends is not read."""
    with contextlib.closing(await watching.session(topic, since)) as session, _held(grant, session):
        await socket.accept()

        async def send_all() -> None:
            async for update in session:
                await socket.send_text(update.layout)

        reason = await carry(session, send_all(), _gone(socket.receive))
        if reason is not CloseReason.LEFT:
            with contextlib.suppress(asyncio.TimeoutError, WebSocketDisconnect, RuntimeError):
                await asyncio.wait_for(socket.close(CLOSE_CODES[reason], reason.value), LAST_SECONDS)
