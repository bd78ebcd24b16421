"""The newest state of every topic, followed by version in a thread; and who waits for it to change.

Stage: under all pages. The tables are followed by `anabranch.history.live`, whose memory is bounded by the topics; of
each a short `TopicRow` is kept here, by which a hundred thousand are searched and sorted. A view with all segments is
made for those that a page shows.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

from deltalake.exceptions import DeltaError

from anabranch.alerts.record import standing_alerts
from anabranch.auth.scopes import EVERYWHERE, Scope, covers_resource
from anabranch.history.live import LakeReader
from anabranch.history.picture import BrakesView, LakeView, TopicView, late_seconds
from anabranch.web.rows import HOT, PageFreshness, TopicRow
from anabranch.web.trend import GAP_SECONDS, FleetTrend
from anabranch.web.words import namespace_of
from decisions.autoscale.policy import ResolvedPolicy
from decisions.autoscale.snapshot import MANAGED
from lake.files import is_remote
from lake.tail import StoredRow, Tail
from schemas.tables.rows import ALERTS

log = logging.getLogger(__name__)

LOOK_SECONDS, REMOTE_LOOK_SECONDS = (0.2, 1.0), (1.0, 40.0)
"""Between two looks at the tables, while a page is open and while none is; in an object store each is a request."""
UNHEARD_SECONDS = 600.0
"""An end that the job has not heard of for longer is lost."""
_TOPICS_AT_ONCE = 500
MAX_ALERTS = 400
"""Newest rows of the alerts' table that are known."""


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
        self._alerts_tail = Tail(lake, ALERTS)
        self._alerts: deque[StoredRow] = deque(maxlen=MAX_ALERTS)
        self._stop, self._page_opened = threading.Event(), threading.Event()
        self._busy_seconds, self._idle_seconds = REMOTE_LOOK_SECONDS if is_remote(lake) else LOOK_SECONDS
        self.trend = FleetTrend(max(GAP_SECONDS, 2 * self._idle_seconds))
        """The whole fleet over time, since this process looks at it."""
        self.version = 0
        """Grows with every change."""
        self._looked_at = time.monotonic()

    def run(self) -> None:
        """Follow the lake until `stop`; a thread's work."""
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self.look()
            except Exception:
                log.exception("the lake could not be read; trying again")
            self._stop.wait(max(self._busy_seconds, time.monotonic() - begun))
            if not self._wakers and not self._stop.is_set():
                self._page_opened.wait(self._idle_seconds - self._busy_seconds)
            self._page_opened.clear()

    def stop(self) -> None:
        """End `run`, and everybody's waiting."""
        self._stop.set()
        self._page_opened.set()
        self._wake()

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    def look(self) -> None:
        """Take in what is new."""
        self._looked_at = time.monotonic()
        new = self._reader.read()
        with self._lock:
            changed = list(self._reader.take(new))
        # A page does not wait for a whole fleet.
        for first in range(0, len(changed), _TOPICS_AT_ONCE):
            with self._lock:
                for name in changed[first : first + _TOPICS_AT_ONCE]:
                    self._note(name, self._reader.topic(name))
        new |= {ALERTS.name: self._read_alerts()}
        around = self._reader.trouble, self._reader.around
        if changed or any(new.values()) or around != self._around or not self._has_looked:
            self._around, self._has_looked = around, True
            self.version += 1
            self._wake()
        if self.trend.is_due(now := datetime.now(timezone.utc)):
            with self._lock:
                rows, applied = list(self._rows.values()), self._reader.applied
            self.trend.add(now, rows, applied)

    def _read_alerts(self) -> list[StoredRow]:
        try:
            rows = self._alerts_tail.read()
        except (DeltaError, OSError) as error:
            log.debug("the alerts cannot be read, trying again: %s", error)
            return []
        with self._lock:
            self._alerts.extend(rows)
        return rows

    def _note(self, name: str, view: TopicView | None) -> None:
        self._namespaces[before.namespace if (before := self._rows.get(name)) else namespace_of(name)] = (
            self.version + 1
        )
        if view is None:
            self._rows.pop(name, None)
            self._turns.pop(name, None)
            return
        last, turns = view.last, self._turns.get(name)
        loads = [segment.overload for segment in view.segments if segment.overload is not None]
        is_hot, was_hot = max(loads, default=0.0) > HOT, before is not None and before.is_hot
        hot_from = before.hot_from if before is not None and was_hot else view.loaded_at
        if last is not None and last.status == "applied" and (not turns or turns[-1][0] != last.decision_id):
            turns = self._turns.setdefault(name, deque(maxlen=3))
            turns.append((last.decision_id, last.action, last.decided_at))
        self._rows[name] = TopicRow(
            name=name,
            namespace=before.namespace if before else namespace_of(name),
            segments=len(view.segments),
            load=max(loads, default=None),
            load_sum=sum(loads),
            hot_from=hot_from if is_hot else None,
            short=sum(max(0, count - len(view.segments)) for _, kind, count in view.consumers if kind in MANAGED),
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

    def alerts(self) -> list[StoredRow]:
        """Return the pending and firing alerts, newest first."""
        with self._lock:
            return standing_alerts(self._alerts)

    def batches(self) -> list[StoredRow]:
        """The job's newest batches, oldest first."""
        with self._lock:
            return list(self._reader.batches)

    def standing(self) -> PageFreshness:
        """Return the freshness of the data."""
        with self._lock:
            committed = [row["committed_at"] for row in self._reader.batches]
            newest, is_reading = committed[-1] if committed else None, not self._has_looked
            late, unseen = late_seconds(committed), min(time.monotonic() - self._looked_at, self._idle_seconds)
            return PageFreshness(datetime.now(timezone.utc), newest, self._around[0], is_reading, late, unseen)

    async def after(
        self, version: int, topic: str | None = None, scope: Scope = EVERYWHERE, seconds: float = 15.0
    ) -> int:
        """Wait for a version above `version`, of a topic or a scope, and return the newest.

        Returns after at most `seconds`, even without a newer version.
        """
        self._loop = asyncio.get_running_loop()
        waker = asyncio.Event()
        self._wakers.add(waker)
        self._page_opened.set()
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
                (version for namespace, version in self._namespaces.items() if covers_resource(scope, namespace)),
                default=0,
            )

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for waker in self._wakers:
            waker.set()
