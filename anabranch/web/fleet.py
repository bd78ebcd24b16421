"""The newest state of every topic, followed by version in a thread; and who waits for it to change.

Stage: under all pages. The tables are followed by `anabranch.history.live`, whose memory is bounded by the topics; of
each a short `TopicRow` is kept here, by which a hundred thousand are searched and sorted. A view with all segments is
made for those that a page shows.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from anabranch.auth.scopes import EVERYWHERE, Scope, covers
from anabranch.history.live import LakeReader
from anabranch.history.picture import BrakesView, LakeView, TopicView, late_seconds
from anabranch.web.words import namespace_of
from decisions.autoscale.policy import ResolvedPolicy
from lake.tail import StoredRow

log = logging.getLogger(__name__)

LOOK_SECONDS, IDLE_SECONDS = 0.2, 1.0
"""Between two looks at the tables, while a page is open and while none is."""
THRASHING_SECONDS = 3_600.0
"""Within that time of the first, three actions that undo one another are thrashing."""
UNHEARD_SECONDS = 600.0
"""An end that the job has not heard of for longer is lost."""
_TOPICS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class TopicRow:
    """Values by which a topic is searched, filtered and sorted."""

    name: str
    namespace: str
    segments: int
    load: float | None
    """Of its fullest segment: the largest rate / split threshold; None: not known."""
    is_cold: bool
    """All its segments are."""
    gate: str
    """Of the hold that stands; empty: none."""
    waiting: str
    """The brake that holds its open decision; empty: none."""
    is_open: bool
    acted_at: datetime | None
    """When its newest decision was made."""
    consumers: int
    turns: tuple[tuple[str, datetime], ...]
    """Its newest applied actions, at most three."""
    version: int
    """Of the fleet, when it last changed."""
    stuck_from: datetime | None = None
    """From when it is stuck if nothing happens: its decision is open, or the job has not heard of its end; None: it is
    not waiting for either."""

    def is_stuck(self, now: datetime) -> bool:
        """It decides nothing any more until a person does something."""
        return self.stuck_from is not None and now >= self.stuck_from

    def is_thrashing(self, now: datetime) -> bool:
        """Its last three actions undid one another, not long ago."""
        if len(self.turns) < 3:
            return False
        kinds = [kind for kind, _ in self.turns]
        recent = now - self.turns[0][1] < timedelta(seconds=THRASHING_SECONDS)
        return recent and kinds[0] == kinds[2] != kinds[1]


@dataclass(frozen=True)
class PageFreshness:
    """Freshness of the data on a page."""

    now: datetime
    batch_at: datetime | None
    """When the job last committed; None: not seen."""
    trouble: str | None
    """Why the lake cannot be read; None: it can."""
    is_reading: bool
    """The first look is not over."""
    late_seconds: float = 60.0
    """Without a batch for longer the job is said to be silent."""

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the job last committed, once it is late; None: it is at work, or never was."""
        if self.batch_at is None:
            return None
        age = (self.now - self.batch_at).total_seconds()
        return age if age > self.late_seconds else None


class WatchedFleet:
    """Follows a lake. One thread calls `look`, or `run` does; everything else may be called from any."""

    def __init__(self, lake: str, stuck_seconds: float = math.inf) -> None:
        """`stuck_seconds`: age from which an open decision is stuck."""
        self._reader, self._stuck_seconds = LakeReader(lake), stuck_seconds
        self._lock = threading.Lock()
        self._rows: dict[str, TopicRow] = {}
        self._namespaces: dict[str, int] = {}
        """The version at which something in a namespace changed last."""
        self._turns: dict[str, deque[tuple[str, str, datetime]]] = {}
        self._has_looked = False
        self._around: tuple[str | None, tuple[int, int]] = (None, (0, 0))
        """What the lake's tables do not say: trouble with it, brakes and executors."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakers: set[asyncio.Event] = set()
        self._stop = threading.Event()
        self.version = 0
        """Grows with every change."""

    def run(self) -> None:
        """Follow the lake until `stop`; a thread's work."""
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self.look()
            except Exception:
                log.exception("the lake could not be read; trying again")
            seconds = LOOK_SECONDS if self._wakers else IDLE_SECONDS
            self._stop.wait(max(seconds, time.monotonic() - begun))

    def stop(self) -> None:
        """End `run`, and everybody's waiting."""
        self._stop.set()
        self._wake()

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def look(self) -> None:
        """Take in what is new."""
        new = self._reader.read()
        with self._lock:
            changed = list(self._reader.take(new))
        # A page does not wait for a whole fleet.
        for first in range(0, len(changed), _TOPICS_AT_ONCE):
            with self._lock:
                for name in changed[first : first + _TOPICS_AT_ONCE]:
                    self._note(name, self._reader.topic(name))
        around = self._reader.trouble, self._reader.around
        if changed or any(new.values()) or around != self._around or not self._has_looked:
            self._around, self._has_looked = around, True
            self.version += 1
            self._wake()

    def _note(self, name: str, view: TopicView | None) -> None:
        self._namespaces[before.namespace if (before := self._rows.get(name)) else namespace_of(name)] = (
            self.version + 1
        )
        if view is None:
            self._rows.pop(name, None)
            self._turns.pop(name, None)
            return
        last, turns = view.last, self._turns.get(name)
        if last is not None and last.status == "applied" and (not turns or turns[-1][0] != last.decision_id):
            turns = self._turns.setdefault(name, deque(maxlen=3))
            turns.append((last.decision_id, last.action, last.decided_at))
        self._rows[name] = TopicRow(
            name=name,
            namespace=before.namespace if before else namespace_of(name),
            segments=len(view.segments),
            load=max((segment.overload for segment in view.segments if segment.overload is not None), default=None),
            is_cold=all(segment.is_cold for segment in view.segments),
            gate=view.hold.gate if view.hold else "",
            waiting=view.brake or "",
            is_open=view.open_decision is not None,
            acted_at=last.decided_at if last else None,
            consumers=sum(count for _, _, count in view.consumers),
            turns=tuple((action, instant) for _, action, instant in turns or ()),
            version=self.version + 1,
            stuck_from=self._stuck_from(view),
        )

    def _stuck_from(self, view: TopicView) -> datetime | None:
        if view.unheard_since is not None:
            return view.unheard_since + timedelta(seconds=UNHEARD_SECONDS)
        if view.open_decision is None or view.last is None or math.isinf(self._stuck_seconds):
            return None
        return view.last.decided_at + timedelta(seconds=self._stuck_seconds)

    def rows(self) -> list[TopicRow]:
        """All topics, in no order."""
        with self._lock:
            return list(self._rows.values())

    def row(self, name: str) -> TopicRow | None:
        """One of them; None: there is none of that name."""
        with self._lock:
            return self._rows.get(name)

    def views(self, names: Iterable[str]) -> list[TopicView]:
        """Some topics as they stand, in that order, without those that are gone."""
        with self._lock:
            return [view for name in names if (view := self._reader.topic(name)) is not None]

    def policy(self, name: str) -> ResolvedPolicy | None:
        """Return the effective policy of a topic with the source of each value.

        None: the job has not recorded its own policy.
        """
        with self._lock:
            return self._reader.policy(name)

    def whole(self) -> LakeView:
        """The newest decisions, the rates, the brakes: everything but topics."""
        with self._lock:
            return self._reader.whole(datetime.now(timezone.utc))

    def brakes(self) -> BrakesView:
        """Return the executors and the safeguards that keep them from acting."""
        return self.whole().brakes

    def batches(self) -> list[StoredRow]:
        """The job's newest batches, oldest first."""
        with self._lock:
            return list(self._reader.batches)

    def standing(self) -> PageFreshness:
        """Return the freshness of the data."""
        with self._lock:
            committed = [row["committed_at"] for row in self._reader.batches]
            newest, is_reading = committed[-1] if committed else None, not self._has_looked
            return PageFreshness(
                datetime.now(timezone.utc), newest, self._around[0], is_reading, late_seconds(committed)
            )

    async def after(
        self, version: int, topic: str | None = None, scope: Scope = EVERYWHERE, seconds: float = 15.0
    ) -> int:
        """Wait for a version above `version`, of a topic or a scope, and return the newest.

        Returns after at most `seconds`, even without a newer version.
        """
        self._loop = asyncio.get_running_loop()
        waker = asyncio.Event()
        self._wakers.add(waker)
        end = time.monotonic() + seconds
        try:
            while not self._stop.is_set():
                newest = self._newest(topic, scope)
                left = end - time.monotonic()
                if newest > version or left <= 0:
                    return newest
                waker.clear()
                try:
                    await asyncio.wait_for(waker.wait(), left)
                except asyncio.TimeoutError:
                    return newest
            return version
        finally:
            self._wakers.discard(waker)

    def _newest(self, topic: str | None, scope: Scope) -> int:
        row = self.row(topic) if topic else None
        if row is not None:
            return row.version
        if not scope:
            return self.version
        with self._lock:
            return max(
                (version for namespace, version in self._namespaces.items() if covers(scope, namespace)), default=0
            )

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for waker in self._wakers:
            waker.set()
