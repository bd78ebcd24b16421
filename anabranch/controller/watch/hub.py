"""Watch sessions by topic, and their pending layouts (PIP-468 "DAG Watch Sessions").

Lives in one event loop. A session holds only the newest pending layout: a slow client skips epochs and never goes back.
From another thread: `loop.call_soon_threadsafe(hub.publish, topic, update)`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from anabranch.controller.access.grants import REVOKED_REASON

MAX_MISSED = 64
"""Updates that may replace an unread one before a session is closed as slow."""


class LayoutUpdate(NamedTuple):
    """A whole layout as JSON, and its epoch. All sessions share the text."""

    epoch: int
    layout: str


class CloseReason(str, Enum):
    """Reason for the end of a session."""

    LEFT = "the client left"
    SLOW = "the client did not keep up; watch again from the last epoch"
    AHEAD = "the layout is older than the epoch to resume from; watch again without one"
    DELETED = "the topic was deleted"
    STOPPED = "the controller is stopping; watch again elsewhere"
    REVOKED = REVOKED_REASON


class WatchSession(AsyncIterator[LayoutUpdate]):
    """Session of one client on one topic: iterate for updates in one task, then `close` it.

    The iteration ends when the session is closed; `closed_because` then holds the reason.
    """

    def __init__(self, topic: str, floor: int, detach: "Callable[[WatchSession], None]") -> None:
        self.topic = topic
        self.closed_because: CloseReason | None = None
        self._floor, self._detach = floor, detach
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
        """End the session; the first reason is kept, and a pending update is dropped."""
        if self.closed_because is None:
            self.closed_because = reason
            self._pending = None
            self._ready.set()
            self._closed.set()
            self._detach(self)

    async def until_closed(self) -> CloseReason:
        """Wait for the end, so that a transport that is stuck in sending can give up."""
        await self._closed.wait()
        assert self.closed_because is not None
        return self.closed_because

    def offer(self, update: LayoutUpdate, again: bool = False) -> None:
        """Offer the newest layout; called by the hub. `again`: a new text at an old epoch."""
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
    """A watched topic."""

    newest: LayoutUpdate | None = None
    sessions: set[WatchSession] = field(default_factory=set)


class WatchHub:
    """Watch sessions of all topics. No state is kept for a topic without sessions."""

    def __init__(
        self, load: Callable[[str], Awaitable[LayoutUpdate]], unwatched: Callable[[str], None] = lambda topic: None
    ) -> None:
        """`load` returns the stored layout of a topic; its exceptions go to the subscriber.

        `unwatched` is called with a topic when its last session has ended.
        """
        self._load, self._unwatched = load, unwatched
        self._feeds: dict[str, _Feed] = {}

    def publish(self, topic: str, update: LayoutUpdate) -> bool:
        """Offer a layout to all sessions of its topic unless unchanged; return False if older than the newest.

        A new text at an old epoch is offered too: policy or leader can change without a new epoch.
        """
        if (feed := self._feeds.get(topic)) is None:
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
        """Open a session that yields the whole layout at once, then every later one.

        With `since_epoch`, the client's last epoch, it yields only later ones; `AHEAD` ends a session whose client
        knows an epoch that the topic has not reached, as after a deletion and a new creation.
        """
        feed = self._feeds.setdefault(topic, _Feed())
        session = WatchSession(topic, -1 if since_epoch is None else since_epoch, self._detach)
        feed.sessions.add(session)
        if feed.newest is None:
            try:
                # The session is registered already, so updates published during the load are not missed.
                loaded = await self._load(topic)
            except BaseException:
                session.close()
                raise
            if feed.newest is None:
                # Otherwise a newer update was published meanwhile.
                self.publish(topic, loaded)
        if feed.newest is not None:
            session.offer(feed.newest)
            if since_epoch is not None and feed.newest.epoch < since_epoch:
                session.close(CloseReason.AHEAD)
        return session

    def forget(self, topic: str) -> None:
        """End the sessions of a deleted topic."""
        self._close([topic], CloseReason.DELETED)

    def stop(self) -> None:
        """End all sessions."""
        self._close(list(self._feeds), CloseReason.STOPPED)

    def is_watched(self, topic: str) -> bool:
        """Return whether the topic has a session."""
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
