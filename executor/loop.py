"""The work in hand, topic by topic: record the intent, then act; record the end, then announce it; persist, then wait.

Stage: the heart of the executor. One thread (the caller of `run`) owns all state here, polls the tail, makes every
Delta commit (what is ready at the same time goes into one) and announces; worker threads only make HTTP calls
(`attempt`, in `workers`). The item of work is a topic: its open decisions are taken up one after the other, oldest
first, and a topic that waits holds no thread.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count

from deltalake.exceptions import DeltaError

from executor.attempt import Cluster, Ended, Result, Standing, TryAgain, observe_once, try_once
from executor.decision import Decision, Malformed, read_decision
from executor.judge import describe
from executor.outcomes import INTENT, OutcomeLedger, RecordedEnd
from executor.publisher import OutcomePublisher
from executor.tail import DecisionTail
from executor.workers import Workers
from schemas.messages import OutcomeEvent
from schemas.settings import ExecutorSettings
from schemas.tables import OutcomeRow

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""At a clean stop, longest wait for the calls that are out; the next start judges by the layout what became of them."""
LAKE_FIRST_SECONDS = 0.1
LAKE_MOST_SECONDS = 5.0
"""First and longest pause after the lake could not be read or written."""
MAX_ERROR = 2_000
"""Characters of an error text that are kept."""

LAKE_ERRORS = (DeltaError, OSError)


@dataclass(frozen=True)
class _Begin:
    """A decision is about to be acted on: its intent must be durable first."""


Step = _Begin | Ended | TryAgain


@dataclass
class _Work:
    """One open decision; only the loop's thread changes it."""

    decision: Decision | Malformed
    standing: Standing = field(default_factory=Standing)
    begun_at: datetime | None = None
    """When its first intent was recorded (in mode observe: when it was first looked at)."""
    failures: int = 0


@dataclass
class _Pause:
    """Growing pauses while the lake fails; one line in the log when that begins and when it ends."""

    what: str
    until: float = 0.0
    seconds: float = 0.0

    def failed(self, error: Exception) -> None:
        """Wait before the next time, twice as long as before."""
        if not self.seconds:
            log.warning("%s, trying again: %s", self.what, error)
        self.seconds = min(LAKE_MOST_SECONDS, 2 * self.seconds or LAKE_FIRST_SECONDS)
        self.until = time.monotonic() + self.seconds

    def succeeded(self) -> None:
        """No pause any more."""
        if self.seconds:
            log.info("the lake works again (%s)", self.what)
        self.until = self.seconds = 0.0


class Executor:
    """Applies what `tail` brings through `cluster`, on the record of `ledger`, announced by `publisher`."""

    def __init__(
        self,
        settings: ExecutorSettings,
        tail: DecisionTail,
        ledger: OutcomeLedger,
        cluster: Cluster,
        publisher: OutcomePublisher,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._settings, self._tail, self._ledger = settings, tail, ledger
        self._cluster, self._publisher, self._clock = cluster, publisher, clock
        self._observe = settings.mode == "observe"
        self._topics: dict[str, deque[_Work]] = {}
        self._known: set[str] = set()
        self._fresh: deque[_Work] = deque()
        self._later: list[tuple[float, int, _Work]] = []
        self._numbers: Iterator[int] = count()
        self._to_record: list[tuple[_Work, Step]] = []
        self._poll_at = 0.0
        self._reading = _Pause("decisions cannot be read")
        self._writing = _Pause("outcomes cannot be written")
        self._workers: Workers[_Work, tuple[Result, Standing]] = Workers(settings.workers)
        self._stopping = threading.Event()

    @property
    def open_decisions(self) -> int:
        """Decisions in hand."""
        return sum(len(works) for works in self._topics.values())

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; `ready` is called when the record has been read. Raises `LeaseLost` when overtaken.

        Raises `DeltaError` or `OSError` when the record cannot be read at the start.
        """
        self._workers.start()
        try:
            self._restore()
            ready()
            while not self._stopping.is_set():
                self._take_results(self._wait_seconds())
                self._take_decisions()
                self._record()
                self._dispatch()
                self._publisher.poll()
            self._finish()
        finally:
            self._stopping.set()

    def stop(self) -> None:
        """Finish what is in hand, within `STOP_SECONDS`, and end `run`. For any thread and for signal handlers."""
        self._stopping.set()
        self._workers.wake()

    def _restore(self) -> None:
        history = self._ledger.history()
        self._known |= history.ended
        for end in history.newest.values():
            self._announce(end)
        for row in self._tail.read(self._known):
            self._take_up(row)
        for works in self._topics.values():
            for work in works:
                begun = history.begun.get(work.decision.decision_id)
                if begun is not None:
                    work.begun_at = begun.at
                    work.standing = Standing(calls=begun.calls, open_end=True)
        for works in self._topics.values():
            self._begin(works[0])

    def _wait_seconds(self) -> float:
        wake_at = self._poll_at
        if self._to_record:
            wake_at = min(wake_at, self._writing.until)
        if self._later and self._workers.has_room_for_retry:
            wake_at = min(wake_at, self._later[0][0])
        return max(0.0, wake_at - time.monotonic())

    def _take_results(self, wait_seconds: float) -> None:
        for work, found in self._workers.results(wait_seconds):
            if isinstance(found, Exception):
                self._take_result(work, TryAgain(f"an error in the executor itself: {found!r}"))
            else:
                result, work.standing = found
                self._take_result(work, result)

    def _take_result(self, work: _Work, result: Result) -> None:
        """Turns a try that settled nothing into the end when its time is over."""
        step: Step = result
        if isinstance(result, TryAgain):
            work.failures += 1
            waited = (self._clock() - work.begun_at).total_seconds() if work.begun_at else 0.0
            if waited >= self._settings.give_up_seconds:
                step = Ended("failed", result.layout, f"given up after {waited:.0f} s: {result.reason}")
            else:
                level = logging.WARNING if work.failures == 1 else logging.DEBUG
                log.log(level, "%s is not settled, trying again: %s", work.decision, result.reason)
        if isinstance(step, TryAgain) and self._observe:
            self._retry_later(work, step)
        else:
            self._to_record.append((work, step))

    def _take_decisions(self) -> None:
        now = time.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + self._settings.poll_ms / 1000
        if now < self._reading.until:
            return
        try:
            self._ledger.check_lease()
            rows = self._tail.read(self._known)
        except LAKE_ERRORS as error:
            self._reading.failed(error)
            return
        self._reading.succeeded()
        for row in rows:
            work = self._take_up(row)
            if work is not None and self._topics[work.decision.subject][0] is work:
                self._begin(work)

    def _take_up(self, row: dict[str, object]) -> _Work | None:
        """Adds a row to its topic's work, unless its decision is known."""
        decision = read_decision(row)
        if decision.decision_id in self._known:
            return None
        self._known.add(decision.decision_id)
        work = _Work(decision)
        self._topics.setdefault(decision.subject, deque()).append(work)
        return work

    def _begin(self, work: _Work) -> None:
        """The first step of the oldest open decision of a topic."""
        if isinstance(work.decision, Malformed):
            self._to_record.append((work, Ended("rejected", None, work.decision.why)))
        elif self._observe:
            work.begun_at = self._clock()
            self._fresh.append(work)
        elif work.begun_at is not None:
            self._fresh.append(work)
        else:
            self._to_record.append((work, _Begin()))

    def _record(self) -> None:
        """One commit with all steps that are ready; only then do they have consequences."""
        if not self._to_record or time.monotonic() < self._writing.until:
            return
        now = self._clock()
        rows = [self._row(work, step, now) for work, step in self._to_record]
        try:
            self._ledger.append(rows)
        except LAKE_ERRORS as error:
            self._writing.failed(error)
            return
        self._writing.succeeded()
        recorded, self._to_record = self._to_record, []
        for (work, step), row in zip(recorded, rows, strict=True):
            if isinstance(step, Ended):
                self._end(work, row)
            elif isinstance(step, TryAgain):
                self._retry_later(work, step)
            else:
                work.begun_at = row.at
                self._fresh.append(work)

    def _row(self, work: _Work, step: Step, now: datetime) -> OutcomeRow:
        decision = work.decision
        layout = None if isinstance(step, _Begin) else step.layout
        error = step.error if isinstance(step, Ended) else step.reason if isinstance(step, TryAgain) else None
        gone = isinstance(step, Ended) and step.status in ("superseded", "observed") and layout is None
        seen = describe(decision, layout) if isinstance(decision, Decision) and (layout or gone) else {}
        if isinstance(step, Ended) and step.would is not None:
            seen["would"] = step.would
        return self._ledger.row(
            decision_id=decision.decision_id,
            family=decision.family,
            subject=decision.subject,
            status=step.status if isinstance(step, Ended) else INTENT,
            attempt=work.standing.calls,
            at=now,
            layout_epoch=None if layout is None else layout.epoch,
            seen=seen,
            error=error and error[:MAX_ERROR],
        )

    def _end(self, work: _Work, row: OutcomeRow) -> None:
        log.info("%s: %s%s", work.decision, row.status, f": {row.error}" if row.error else "")
        self._announce(RecordedEnd(row.decision_id, row.subject, row.status, row.error, row.at))
        works = self._topics[row.subject]
        works.popleft()
        if works:
            self._begin(works[0])
        else:
            del self._topics[row.subject]

    def _announce(self, end: RecordedEnd) -> None:
        try:
            event = OutcomeEvent.model_validate({
                "v": 1, "type": "outcome", "decisionId": end.decision_id, "topic": end.subject, "status": end.status,
                "error": end.error, "at": int(end.at.timestamp() * 1000),
            })  # fmt: skip
        except ValueError:
            log.warning("the outcome of decision %r of %r cannot be announced: no such names on Kafka",
                        end.decision_id[:200], end.subject[:200])  # fmt: skip
            return
        self._publisher.publish(event)

    def _retry_later(self, work: _Work, step: TryAgain) -> None:
        first, most = self._settings.retry_first_seconds, self._settings.retry_most_seconds
        pause = most if step.slowly else min(most, first * 2 ** min(work.failures - 1, 30))
        if work.begun_at is not None:
            left = self._settings.give_up_seconds - (self._clock() - work.begun_at).total_seconds()
            pause = min(pause, max(0.0, left))
        heapq.heappush(self._later, (time.monotonic() + pause, next(self._numbers), work))

    def _dispatch(self) -> None:
        while self._fresh and self._workers.has_room:
            self._start(self._fresh.popleft())
        while self._later and self._later[0][0] <= time.monotonic() and self._workers.has_room_for_retry:
            self._start(heapq.heappop(self._later)[2])

    def _start(self, work: _Work) -> None:
        decision, standing = work.decision, work.standing
        assert isinstance(decision, Decision)
        retry = work.failures > 0
        if self._observe:
            self._workers.give(work, retry, lambda: observe_once(decision, standing, self._cluster))
        else:
            self._workers.give(work, retry, lambda: try_once(decision, standing, self._cluster, self._may_call))

    def _may_call(self) -> bool:
        return not self._stopping.is_set()

    def _finish(self) -> None:
        """No new tries; the calls that are out get their time, and what came of them is recorded and announced."""
        end = time.monotonic() + STOP_SECONDS
        while self._workers.busy and time.monotonic() < end:
            self._take_results(end - time.monotonic())
        self._to_record = [(work, step) for work, step in self._to_record if isinstance(step, Ended)]
        self._writing.until = 0.0
        self._record()
        self._publisher.close()
        log.info("stopped with %d open decisions; the next start goes on with them", self.open_decisions)
