"""Delivery of notices: one thread for each destination; retries until delivered, rejected or too old.

Stage: beside `anabranch.alerts.evaluator`, which collects the settled notices and records them. A destination that does
not answer delays no other one, and no evaluation. A notice that fails lets those behind it pass; those of one alert
keep their order.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Literal

from anabranch.alerts.posting import DeliveryFailed, NoticeRejected, NoticeSender
from anabranch.alerts.record import Notice
from anabranch.alerts.states import Labels

log = logging.getLogger(__name__)

GIVE_UP = timedelta(days=1)
"""A notice that could not be told for so long is given up."""
DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 300.0
"""Delay before the next try after a fault, random up to a bound that doubles from the first to the second."""
MAX_RETRY_AFTER_SECONDS = 900.0
"""Longest delay that a destination may ask for with `Retry-After`."""
RESOLVED_AGAIN = timedelta(minutes=15)
"""A resolved alert is repeated for so long, as Prometheus does: an Alertmanager that is killed before it has notified
anybody would not know of it."""

Settled = tuple[Notice, Literal["told", "rejected", "untold"], str | None]
_Key = tuple[str, Labels]


class Notifier:
    """Delivery to one destination."""

    def __init__(
        self, name: str, sender: NoticeSender, now: Callable[[], datetime], max_delay: float = MAX_DELAY_SECONDS
    ) -> None:
        self.name, self._sender, self._now = name, sender, now
        self._max_delay = max_delay
        self._new: SimpleQueue[Notice | None] = SimpleQueue()
        self.settled: SimpleQueue[Settled] = SimpleQueue()
        """Notices that were told, rejected or given up, with the fault."""
        self.fault: str | None = None
        """The last fault; None: the last try succeeded."""
        self.waiting = 0
        """Notices that were not told yet."""
        self._repeating: dict[_Key, tuple[Notice, datetime | None]] = {}
        """Repeated notices and the end of their repetition; None: as long as the alert fires."""
        self._repeat_at = float("-inf")
        """Start of the next repetition, on the clock `time.monotonic`."""
        self._suspects: set[_Key] = set()
        """Alerts of a batch that was rejected, until they are told: each is sent alone, and so fails alone."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"notifier-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enqueue_notice(self, notice: Notice) -> None:
        """Enqueue a notice and return at once."""
        self._new.put(notice)

    def resume_repeating(self, notice: Notice, delivered_at: datetime) -> None:
        """Repeat a notice that was delivered before this process began, unless its time is over."""
        until = _repeated_until(notice, delivered_at)
        if self._sender.resend_seconds is not None and (until is None or self._now() < until):
            self._repeating[notice.alert.key] = notice, until

    def stop(self) -> None:
        """Make the thread end once its notices are delivered or fail; the next start retries the failed ones."""
        self._new.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the thread to end, at most this long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        waiting: list[Notice] = []
        repeats: list[Notice] = []
        faults, not_before = 0, 0.0
        while not (self._stopping and (not waiting or time.monotonic() < not_before)):
            is_idle = not waiting and not repeats
            waiting += self._take(0.0 if self._stopping else self._pause(is_idle, not_before))
            self.waiting = len(waiting)
            now = time.monotonic()
            if now < not_before:
                continue
            # Not those whose alert has a newer notice since, told or given up.
            repeats = [notice for notice in repeats if self._is_repeated(notice)] or self._due_repeats(now)
            if not (batch := self._next(waiting, repeats)):
                repeats = []
                continue
            fault: str | None = None
            try:
                self._sender.send(batch, self._now())
            except NoticeRejected as error:
                fault = str(error)
                if len(batch) > 1:
                    self._suspects |= {notice.alert.key for notice in batch}
                    continue
            except DeliveryFailed as error:
                faults += 1
                self.fault = str(error)
                not_before = time.monotonic() + self._delay(faults, error)
                log.warning("%s cannot be told (%d waiting): %s", self.name, len(waiting), error)
                waiting = self._given_up(_last_in_queue(waiting, {notice.alert.key for notice in batch}))
                continue
            faults, self.fault, not_before = 0, fault, 0.0
            sent = {id(notice) for notice in batch}
            for notice in batch:
                self._note(notice, fault)
            for notice in waiting:
                if id(notice) in sent:
                    if fault is not None:
                        log.error("%s rejects %s for good: %s", self.name, notice.notice_id, fault)
                    self.settled.put((notice, "told" if fault is None else "rejected", fault))
            waiting = [notice for notice in waiting if id(notice) not in sent]
            repeats = [notice for notice in repeats if id(notice) not in sent]

    def _next(self, waiting: Sequence[Notice], repeats: Sequence[Notice]) -> list[Notice]:
        """Return the notices to send together: new ones first, then repetitions for alerts without a new one."""
        named = {notice.alert.key for notice in waiting}
        queue = [*waiting, *(notice for notice in repeats if notice.alert.key not in named)]
        together = list(takewhile(lambda notice: notice.alert.key not in self._suspects, queue[: self._sender.batch]))
        return together or queue[:1]

    def _note(self, notice: Notice, fault: str | None) -> None:
        """Record that a notice was delivered or rejected; a rejected one is repeated alone."""
        key = notice.alert.key
        if fault is None or self._sender.resend_seconds is None:
            self._suspects.discard(key)
        else:
            self._suspects.add(key)
        if self._sender.resend_seconds is None:
            return
        if not self._is_repeated(notice):
            self._repeating[key] = notice, _repeated_until(notice, self._now())

    def _is_repeated(self, notice: Notice) -> bool:
        repeated = self._repeating.get(notice.alert.key)
        return repeated is not None and repeated[0] is notice

    def _due_repeats(self, now: float) -> list[Notice]:
        """Return the notices to repeat now; empty if there are none or it is too early."""
        if self._sender.resend_seconds is None or now < self._repeat_at:
            return []
        self._repeat_at, clock = now + self._sender.resend_seconds, self._now()
        self._repeating = {
            key: (notice, until) for key, (notice, until) in self._repeating.items() if until is None or clock < until
        }
        self._suspects &= self._repeating.keys()
        return [notice for notice, _ in self._repeating.values()]

    def _delay(self, faults: int, error: DeliveryFailed) -> float:
        """Return the seconds until the next try."""
        backoff = random.uniform(0, min(self._max_delay, DELAY_SECONDS * 2 ** min(faults, 30)))
        return max(backoff, min(error.retry_after_seconds, MAX_RETRY_AFTER_SECONDS))

    def _pause(self, is_idle: bool, not_before: float) -> float | None:
        """Return the longest wait for a new notice, seconds; None: without end."""
        repeats_at = self._repeat_at if self._repeating else float("inf")
        wake_at = max(not_before, repeats_at) if is_idle else not_before
        return None if wake_at == float("inf") else max(0.0, wake_at - time.monotonic())

    def _take(self, pause: float | None) -> list[Notice]:
        try:
            first = self._new.get(block=pause != 0, timeout=pause or None)
        except Empty:
            return []
        notices = [first]
        while not self._new.empty():
            notices.append(self._new.get_nowait())
        self._stopping |= None in notices
        return [notice for notice in notices if notice is not None]

    def _given_up(self, waiting: list[Notice]) -> list[Notice]:
        oldest = self._now() - GIVE_UP
        for notice in waiting:
            if notice.alert.at < oldest:
                log.error("%s was never told of %s: %s", self.name, notice.notice_id, self.fault)
                self.settled.put((notice, "untold", self.fault))
                self._repeating.pop(notice.alert.key, None)
        return [notice for notice in waiting if notice.alert.at >= oldest]


def _last_in_queue(waiting: Sequence[Notice], keys: set[_Key]) -> list[Notice]:
    """Move all notices of some alerts behind the others: the fault may be of these alone."""
    return sorted(waiting, key=lambda notice: notice.alert.key in keys)


def _repeated_until(notice: Notice, delivered_at: datetime) -> datetime | None:
    return None if notice.alert.status == "firing" else delivered_at + RESOLVED_AGAIN
