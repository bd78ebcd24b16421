"""The layouts of a node's watch sessions, read again whenever the metadata store says that they changed.

Stage: between the metadata store, whose watches say "look again" on every node, and `WatchHub`, which knows who gets
what: so any node serves any session. Each update is whole:

`{"topic": "topic://…", "epoch": 3, "controllerBrokerUrl": "http://…", "segmentBrokers": {"4": "http:…"}, "layout": …}`

`controllerBrokerUrl` is the leader, where consumers register; while there is none that is known, the node that
answers, which takes over when it is asked. `segmentBrokers` names the node that answers for every active segment: the
leader too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable

from controller.errors import NotFound
from controller.metadata import store_paths
from controller.metadata.base import CallbackHandle, Kind, MetadataStore, StoreError
from controller.retries import with_jitter
from controller.watch.hub import CloseReason, LayoutUpdate, WatchHub, WatchSession

log = logging.getLogger(__name__)

RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS = 1.0, 0.5
"""Time before a failed look at the store is repeated."""


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

    def __init__(self, nodes: MetadataStore, url: str, known: Callable[[str], bool] = lambda url: True) -> None:
        """`known`: whether clients may be sent to an address that the store has."""
        self._known = known
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
            # The topic was deleted and made again: the client knows an earlier topic of that name.
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
                self._loop.call_later(with_jitter(RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS), self._look_again, topic)
            return
        if version < self._versions.get(topic, 0) or not self.hub.is_watched(topic):
            return
        if update is None or not self.hub.publish(topic, update):
            # Deleted, or deleted and made again: an epoch that goes back is that of another topic of the same name.
            self.hub.forget(topic)
        else:
            self._versions[topic] = version

    def _read(self, topic: str) -> tuple[int, LayoutUpdate | None]:
        layout, leader = self._nodes.get_all(_paths(topic))
        if layout is None or not layout.value:
            return (layout.version if layout else sys.maxsize), None
        url = leader.value.decode("utf-8", "replace") if leader else self._url
        if not self._known(url):
            url = self._url
        return layout.version, watch_update(topic, layout.value.decode(), url)


def _paths(topic: str) -> list[str]:
    return [store_paths.topic_path(topic), store_paths.leader_path(topic)]


def _cancel(watch: asyncio.Future[list[CallbackHandle]]) -> None:
    if not watch.cancelled() and watch.exception() is None:
        for subscription in watch.result():
            subscription.cancel()
