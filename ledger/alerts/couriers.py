"""Brings notices to their destinations: one thread each, in order, again and again until they are told.

Stage: beside `ledger.alerts.evaluator`, which takes back what was told and records it. A destination that does not
answer holds up no other one, and no evaluation.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Literal

from ledger.alerts.posting import NotTold, Sender
from ledger.alerts.record import Notice
from ledger.alerts.states import Labels

log = logging.getLogger(__name__)

GIVE_UP = timedelta(days=1)
"""A notice that could not be told for so long is given up."""
DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 300.0
"""Delay before the next try after a fault, random up to a bound that doubles from the first to the second."""

Settled = tuple[Notice, Literal["told", "untold"], str | None]


class Courier:
    """One destination."""

    def __init__(
        self, name: str, sender: Sender, now: Callable[[], datetime], max_delay: float = MAX_DELAY_SECONDS
    ) -> None:
        self.name, self._sender, self._now = name, sender, now
        self._max_delay = max_delay
        self._new: SimpleQueue[Notice | None] = SimpleQueue()
        self.settled: SimpleQueue[Settled] = SimpleQueue()
        """Notices that were told or given up, with the last fault."""
        self.fault: str | None = None
        """The last fault; None: all is told."""
        self.waiting = 0
        """Notices that were not told yet."""
        self._firing: dict[tuple[str, Labels], Notice] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"courier-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, notice: Notice) -> None:
        """Takes a notice; returns at once."""
        self._new.put(notice)

    def keep_telling(self, notice: Notice) -> None:
        """One that fires and was told before this process began: for a destination that wants to hear it again."""
        self._firing[notice.alert.key] = notice

    def stop(self) -> None:
        """Has it end when all that it has is told, or cannot be told at once; the rest is due at the next start."""
        self._new.put(None)

    def join(self, seconds: float) -> None:
        """Waits so long at most until it has ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        waiting: list[Notice] = []
        faults, not_before, resent_at = 0, 0.0, float("-inf")
        while not (self._stopping and (not waiting or time.monotonic() < not_before)):
            pause = 0.0 if self._stopping else self._pause(bool(waiting), not_before, resent_at)
            waiting += self._take(pause)
            self.waiting = len(waiting)
            now = time.monotonic()
            batch = waiting[: self._sender.batch]
            again = self._firing if now >= self._resend_at(resent_at) else {}
            if now < not_before or not (batch or again):
                continue
            named = {notice.alert.key for notice in batch}
            try:
                self._sender.send([*(again[key] for key in again if key not in named), *batch], self._now())
            except NotTold as error:
                faults += 1
                self.fault = str(error)
                not_before = time.monotonic() + random.uniform(
                    0, min(self._max_delay, DELAY_SECONDS * 2 ** min(faults, 30))
                )
                log.warning("%s cannot be told (%d waiting): %s", self.name, len(waiting), error)
                waiting = self._given_up(waiting)
                continue
            faults, self.fault, not_before = 0, None, 0.0
            resent_at = now if again or not self._firing else resent_at
            for notice in batch:
                if notice.alert.status == "firing":
                    self._firing[notice.alert.key] = notice
                else:
                    self._firing.pop(notice.alert.key, None)
                self.settled.put((notice, "told", None))
            waiting = waiting[len(batch) :]

    def _resend_at(self, resent_at: float) -> float:
        """When what goes on firing is told again, on the clock `time.monotonic`."""
        every = self._sender.resend_seconds
        return resent_at + every if every is not None and self._firing else float("inf")

    def _pause(self, is_waiting: bool, not_before: float, resent_at: float) -> float | None:
        """Longest wait for something new, seconds; None: without end."""
        at = not_before if is_waiting else max(not_before, self._resend_at(resent_at))
        return None if at == float("inf") else max(0.0, at - time.monotonic())

    def _take(self, pause: float | None) -> list[Notice]:
        try:
            first = self._new.get(block=pause != 0, timeout=pause or None)
        except Empty:
            return []
        taken = [first]
        while not self._new.empty():
            taken.append(self._new.get_nowait())
        self._stopping |= None in taken
        return [notice for notice in taken if notice is not None]

    def _given_up(self, waiting: list[Notice]) -> list[Notice]:
        horizon = self._now() - GIVE_UP
        for notice in waiting:
            if notice.alert.at < horizon:
                log.error("%s was never told of %s: %s", self.name, notice.notice_id, self.fault)
                self.settled.put((notice, "untold", self.fault))
        return [notice for notice in waiting if notice.alert.at >= horizon]
