"""Feed a node's watch sessions: read layouts again whenever the metadata store reports a change.

Stage: between the metadata store, whose watches mean "look again" on every node, and `WatchHub`, which knows the
sessions: so any node serves any session. Each update is complete:

`{"topic": "topic://…", "epoch": 3, "controllerBrokerUrl": "http://…", "segmentBrokers": {"4": "http:…"}, "layout": …}`

`controllerBrokerUrl` is the leader, where consumers register; without a trusted leader, this node, which takes over on
request. `segmentBrokers` names the owner of every active segment: with segments on Kafka the broker that leads its
partition, `host:port`, where it is known; another update follows when it moves. Without segment topics it is the
leader.
"""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable

from anabranch.controller.errors import NotFound
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import CallbackHandle, ChangeKind, MetadataStore, StoreError
from anabranch.controller.segments.owners import FRESH_SECONDS, SegmentOwners
from anabranch.controller.watch.hub import CloseReason, LayoutUpdate, WatchHub, WatchSession
from decisions.topic.names import segment_descriptor, segment_topic_name
from runtime.backoff import with_jitter

log = logging.getLogger(__name__)

RETRY_DELAY_SECONDS, RETRY_JITTER_SECONDS = 1.0, 0.5
"""Delay before a failed look at the store is repeated."""


def watch_update(topic: str, layout: str, url: str, owners: SegmentOwners | None = None) -> LayoutUpdate:
    """Build the update of `topic` with leader `url`, which owns all segments if `owners` is None."""
    content = json.loads(layout)
    active = {id: segment["hashRange"] for id, segment in content["segments"].items() if segment["state"] == "ACTIVE"}
    if owners is None:
        brokers = dict.fromkeys(active, url)
    else:
        names = {
            id: segment_topic_name(topic, segment_descriptor(hashes["start"], hashes["end"], int(id)))
            for id, hashes in active.items()
        }
        urls = owners.of(topic, content.get("createdAtMs"), list(names.values()))
        brokers = {id: urls[name] for id, name in names.items() if name in urls}
    about = {"topic": topic, "epoch": content["epoch"], "controllerBrokerUrl": url, "segmentBrokers": brokers}
    return LayoutUpdate(content["epoch"], f'{json.dumps(about)[:-1]}, "layout": {layout}}}')


class LayoutWatcher:
    """Hub of the node at `url`, fed from `nodes` for every watched topic."""

    def __init__(
        self,
        nodes: MetadataStore,
        url: str,
        is_known: Callable[[str], bool] = lambda url: True,
        owners: SegmentOwners | None = None,
    ) -> None:
        """`is_known` says whether clients may be sent to an address; `owners`: of segments that are topics."""
        self._owners = owners
        self._refresh: asyncio.TimerHandle | None = None
        self._known = is_known
        self.hub = WatchHub(self._load, self._unwatch)
        self._nodes, self._url = nodes, url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[str, asyncio.Future[list[CallbackHandle]]] = {}
        self._looking: set[str] = set()
        self._stale: set[str] = set()
        """Topics to look at again, including those with a running look."""
        self._versions: dict[str, int] = {}
        """Version of the last published layout of every watched topic."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start in the event loop of the sessions."""
        self._loop = asyncio.get_running_loop()
        if self._owners is not None:
            self._owners.on_change.append(self._look_soon)
            self._look_at_all()

    def stop(self) -> None:
        """End all sessions; idempotent."""
        if self._refresh is not None:
            self._refresh.cancel()
        self.hub.stop()

    async def session(self, topic: str, since: int | None) -> WatchSession:
        """Open a session after epoch `since`, or from the current layout if that is older. Raises `NotFound`."""
        session = await self.hub.subscribe(topic, since)
        if session.closed_because is CloseReason.AHEAD:
            # The topic was deleted and created again: the client knows an earlier topic of that name.
            session = await self.hub.subscribe(topic)
        return session

    async def _load(self, topic: str) -> LayoutUpdate:
        if topic not in self._watches:
            self._watches[topic] = asyncio.ensure_future(asyncio.to_thread(self._watch, topic))
        await asyncio.shield(self._watches[topic])
        # A client may know a newer layout from another node.
        await asyncio.to_thread(self._nodes.sync)
        version, update = await asyncio.to_thread(self._read, topic)
        if update is None:
            raise NotFound(f"Scalable topic not found: {topic}")
        self._versions[topic] = max(version, self._versions.get(topic, 0))
        return update

    def _watch(self, topic: str) -> list[CallbackHandle]:
        """Set the watches, before the first read, so that no later change is missed."""

        def changed(_: str, kind: ChangeKind) -> None:
            if kind is not ChangeKind.CHILDREN:
                self._look_soon(topic)

        watches: list[CallbackHandle] = []
        try:
            watches += (self._nodes.watch(path, changed, below=False) for path in _paths(topic))
        except StoreError:
            for watch in watches:
                watch.cancel()
            raise
        return watches

    def _unwatch(self, topic: str) -> None:
        """Drop the watches of a topic without sessions; the next session retries a failed one."""
        self._versions.pop(topic, None)
        if (watch := self._watches.pop(topic, None)) is not None:
            watch.add_done_callback(_cancel)

    def _look_soon(self, topic: str) -> None:
        """Schedule a look. From any thread."""
        if self._loop is not None:
            # At the very end of the process the loop may be closed already; there are no sessions then.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._look_again, topic)

    def _look_at_all(self) -> None:
        """Look at all topics periodically: owners change without a change in the store."""
        assert self._loop is not None
        for topic in tuple(self._watches):
            self._look_again(topic)
        self._refresh = self._loop.call_later(with_jitter(FRESH_SECONDS, FRESH_SECONDS / 10), self._look_at_all)

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
            # Deleted, or deleted and created again: a lower epoch belongs to another topic of the same name.
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
        return layout.version, watch_update(topic, layout.value.decode(), url, self._owners)


def _paths(topic: str) -> list[str]:
    return [store_paths.topic_path(topic), store_paths.leader_path(topic)]


def _cancel(watch: asyncio.Future[list[CallbackHandle]]) -> None:
    if not watch.cancelled() and watch.exception() is None:
        for subscription in watch.result():
            subscription.cancel()
