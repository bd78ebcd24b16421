"""Who watches which topic, and the layouts that they are still to get (PIP-468 "DAG Watch Sessions").

Stage: between what announces a change of a layout and the transport that sends it; lives in one event loop. A session
holds the newest layout that was not taken yet and no other: a client that is behind skips epochs and never goes back.
From another thread: `loop.call_soon_threadsafe(hub.publish, topic, update)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from controller.access.grants import REVOKED_REASON

MAX_MISSED = 64
"""Updates that a session may leave untaken, one replacing the other, before it is cut off as slow."""


class LayoutUpdate(NamedTuple):
    """A whole layout as JSON, and its epoch. All sessions are given the same text."""

    epoch: int
    layout: str


class CloseReason(str, Enum):
    """Why a session ended."""

    LEFT = "the client left"
    SLOW = "the client did not keep up; watch again from the last epoch"
    AHEAD = "the layout is older than the epoch to resume from; watch again without one"
    DELETED = "the topic was deleted"
    STOPPED = "the controller is stopping; watch again elsewhere"
    REVOKED = REVOKED_REASON


class WatchSession(AsyncIterator[LayoutUpdate]):
    """One client's look at one topic: one task iterates to get updates, and `close`s (`contextlib.closing`) at its end.

    The iteration ends when the session is closed; `closed_because` then says why.
    """

    def __init__(self, topic: str, floor: int, detach: Callable[[WatchSession], None]) -> None:
        self.topic = topic
        self.closed_because: CloseReason | None = None
        self._floor = floor
        self._detach = detach
        self._pending: LayoutUpdate | None = None
        self._missed = 0
        self._ready = asyncio.Event()
        self._closed = asyncio.Event()

    async def __anext__(self) -> LayoutUpdate:
        while self._pending is None and self.closed_because is None:
            self._ready.clear()
            await self._ready.wait()
        update, self._pending, self._missed = self._pending, None, 0
        if update is None or self.closed_because is not None:
            raise StopAsyncIteration
        return update

    def close(self, reason: CloseReason = CloseReason.LEFT) -> None:
        """End the session; the first reason stays, and what was not taken is dropped."""
        if self.closed_because is None:
            self.closed_because = reason
            self._pending = None
            self._ready.set()
            self._closed.set()
            self._detach(self)

    async def until_closed(self) -> CloseReason:
        """Waits for the end, so that a transport that is stuck in sending can give up."""
        await self._closed.wait()
        assert self.closed_because is not None
        return self.closed_because

    def offer(self, update: LayoutUpdate, again: bool = False) -> None:
        """For the hub: the newest layout. `again`: its epoch is an old one, its text is not."""
        if update.epoch <= self._floor and not again:
            return
        if self._pending is not None:
            self._missed += 1
            if self._missed > MAX_MISSED:
                self.close(CloseReason.SLOW)
                return
        self._floor = update.epoch
        self._pending = update
        self._ready.set()


@dataclass
class _Feed:
    """A topic that somebody watches."""

    newest: LayoutUpdate | None = None
    sessions: set[WatchSession] = field(default_factory=set)


class WatchHub:
    """Everyone who watches, by topic. Nothing is kept of a topic that nobody watches."""

    def __init__(
        self, load: Callable[[str], Awaitable[LayoutUpdate]], unwatched: Callable[[str], None] = lambda topic: None
    ) -> None:
        """`load` answers the layout of a topic as it is stored; what it raises goes to the subscriber.

        `unwatched` is told of a topic when the last of its sessions has ended.
        """
        self._load = load
        self._unwatched = unwatched
        self._feeds: dict[str, _Feed] = {}

    def publish(self, topic: str, update: LayoutUpdate) -> bool:
        """Give a layout to all sessions of its topic, except if it is the same; False: it is older than the newest.

        A new text at an old epoch is given: a policy or the leader changes without one.
        """
        feed = self._feeds.get(topic)
        if feed is None:
            return True
        before = feed.newest
        if before is not None and (update.epoch < before.epoch or update == before):
            return update == before
        feed.newest = update
        again = before is not None and update.epoch == before.epoch
        for session in tuple(feed.sessions):
            session.offer(update, again)
        return True

    async def subscribe(self, topic: str, since_epoch: int | None = None) -> WatchSession:
        """A session that gives the whole layout at once, then every later one.

        With `since_epoch`, the last epoch that the client has, only what is later; `AHEAD` ends a session whose client
        knows an epoch that the topic has not reached, as after a deletion and a new creation.
        """
        feed = self._feeds.setdefault(topic, _Feed())
        session = WatchSession(topic, -1 if since_epoch is None else since_epoch, self._detach)
        feed.sessions.add(session)
        if feed.newest is None:
            try:
                # The session is there already: what is published during the load is not missed.
                loaded = await self._load(topic)
            except BaseException:
                session.close()
                raise
            if feed.newest is None:
                # Otherwise what was published meanwhile is newer than what was read.
                self.publish(topic, loaded)
        if feed.newest is not None:
            session.offer(feed.newest)
            if since_epoch is not None and feed.newest.epoch < since_epoch:
                session.close(CloseReason.AHEAD)
        return session

    def forget(self, topic: str) -> None:
        """The topic was deleted: its sessions end."""
        self._close([topic], CloseReason.DELETED)

    def stop(self) -> None:
        """All sessions end."""
        self._close(list(self._feeds), CloseReason.STOPPED)

    def is_watched(self, topic: str) -> bool:
        """Whether anybody watches the topic."""
        return topic in self._feeds

    def _close(self, topics: list[str], reason: CloseReason) -> None:
        for topic in topics:
            feed = self._feeds.get(topic)
            for session in tuple(feed.sessions) if feed else ():
                session.close(reason)

    def _detach(self, session: WatchSession) -> None:
        feed = self._feeds[session.topic]
        feed.sessions.discard(session)
        if not feed.sessions:
            del self._feeds[session.topic]
            self._unwatched(session.topic)
