"""Apply open decisions: record the intent, then act; record the end, then announce it; persist, then wait.

Stage: the heart of the executor. One thread (the caller of `run`) owns all state here, polls the tail, makes every
Delta commit (what is ready at the same time goes into one) and announces; worker threads only look and call
(`attempt`, in `workers`). Which family a decision is of decides only whose `Actor` is asked.

Each open decision goes its own way, in this order:

    new       its row has come; `brakes` hold it until nothing forbids the call
    begun     its intent is durable; a crash from here on leads to another look, never to a second effect
    trying    a worker looks, judges, and calls at most once
    waiting   for a delay after a try that settled nothing, or for a brake that has closed since
    ended     its end is durable, and announced until the job has recorded it

Decisions of one subject, of one evaluation for instance, concern disjoint parts of it. So they are tried in any order,
and one that waits holds up no other. Only the tries of a subject are taken in turn: two calls at once would conflict,
and each is made on the subject that was looked at right before it. Whatever waits holds no thread.

Longer than other files: all of it is one thread's state.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import count

from executor.brakes.rate import WINDOW_SECONDS as COUNTED_SECONDS
from executor.brakes.rules import Candidate, Over, expired
from executor.brakes.waiting import Brakes
from executor.kernel.announcer import Announcer
from executor.kernel.attempt import Ended, Result, Standing, TryAgain, observe_once, try_once
from executor.kernel.backoff import Backoff
from executor.kernel.decision import Malformed, read_decision
from executor.kernel.family import Actors, Decision
from executor.kernel.outages import LAKE_ERRORS, Outage
from executor.kernel.outcomes import INTENT, OutcomeLedger, RecordedEnd, is_failure
from executor.kernel.work import Work
from executor.kernel.workers import Workers
from lake.tail import StoredRow, Tail
from schemas.settings import ExecutorSettings
from schemas.tables import OutcomeRow

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""At a clean stop, longest wait for running calls; the next start reads their effect off the layout."""
MAX_CONFLICTS = 8
"""So many conflicts of a decision with a change of its subject are retried at once, then with delays."""
MAX_ERROR = 2_000
"""Characters of an error text that are kept."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class _Begin:
    """A decision is about to be acted on: its intent must be durable first."""


_Recordable = _Begin | Ended | TryAgain


class Executor:
    """Applies what `tail` brings by the family's actor, on the record of `ledger`, announced by `announcer`.

    A decision is known by its id. One that is known and comes again, as after a new checkpoint of the job, is not acted
    on again: when it has ended its end is announced again, for whoever took it waits for that.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        tail: Tail,
        ledger: OutcomeLedger,
        actors: Actors,
        announcer: Announcer,
        brakes: Brakes[Work],
        clock: Callable[[], datetime] = utc_now,
        holds_lease: Callable[[], bool] = lambda: True,
        elsewhere: Collection[str] = (),
    ) -> None:
        """`holds_lease` is asked, by any thread, right before a call is begun. `elsewhere`: families whose decisions
        other processes carry out."""
        self._holds_lease, self._elsewhere = holds_lease, frozenset(elsewhere)
        self._settings, self._tail, self._ledger = settings, tail, ledger
        self._actors, self._announcer, self._clock = actors, announcer, clock
        self._brakes = self.brakes = brakes
        self._observe = settings.mode == "observe"
        self._backoff = Backoff(settings.retry_delay_seconds, settings.retry_max_delay_seconds)
        self._known: set[str] = set()
        self._open: dict[str, Work] = {}
        """By the id of the decision."""
        self._of_subject: defaultdict[tuple[str, str], list[Work]] = defaultdict(list)
        """The same by subject."""
        self._turns: dict[tuple[str, str], list[Work]] = {}
        """The subjects with a try under way, and the works that are due to be tried after it."""
        self._to_answer: set[str] = set()
        self._was_scanned = False
        self._fresh: deque[Work] = deque()
        self._later: list[tuple[float, int, Work]] = []
        self._numbers: Iterator[int] = count()
        self._to_record: list[tuple[Work, _Recordable]] = []
        self._poll_at = 0.0
        self.looped_at = time.monotonic()
        """Time of the last pass of `run`, monotonic seconds."""
        self._reading = Outage("decisions cannot be read")
        self._writing = Outage("outcomes cannot be written")
        self._workers: Workers[Work, tuple[Result, Standing]] = Workers(settings.workers)
        self._stopping = threading.Event()

    @property
    def open_decisions(self) -> int:
        """Open decisions."""
        return len(self._open)

    @property
    def has_calls_out(self) -> bool:
        """Whether a try has not come back yet, after `run` has ended without waiting for it any longer."""
        for _ in self._workers.results(0):
            continue
        return self._workers.busy

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; `ready` is called when the record has been read. Raises `LeaseLost` when overtaken.

        Raises `DeltaError` or `OSError` when the record cannot be read at the start.
        """
        self._workers.start()
        try:
            self._restore()
            ready()
            while not self._stopping.is_set():
                self.looped_at = time.monotonic()
                self._take_results(self._wait_seconds())
                self._take_decisions()
                self._release()
                self._record()
                self._dispatch()
                self._announcer.poll()
                self._brakes.write()
            self._finish()
        finally:
            self._stopping.set()

    def stop(self) -> None:
        """Finish the running calls, within `STOP_SECONDS`, and end `run`. For any thread and for signal handlers."""
        self._stopping.set()
        self._workers.wake()

    def _restore(self) -> None:
        recorded = self._ledger.recorded()
        self._brakes.read()
        self._known |= recorded.ended
        self._announcer.open()
        for row in self._tail.read(self._known):
            self._take_up(row)
        self._answer()
        for decision_id, work in self._open.items():
            begun = recorded.begun.get(decision_id)
            if begun is not None:
                work.begun_at = begun.at
                work.standing = Standing(calls=begun.calls, open_end=True)
        self._restore_counts()
        for work in self._open.values():
            self._begin(work)

    def _restore_counts(self) -> None:
        """What the brakes count; of what has begun a call may have been out until now, and nobody would know."""
        now = self._clock()
        seconds = max(COUNTED_SECONDS, self._settings.brakes.failures_seconds)
        recently = self._ledger.since(now - timedelta(seconds=seconds))
        begun = [(*work.subject, now) for work in self._open.values() if work.begun_at]
        calls = [
            (self._actors[family].namespace(subject), at)
            for family, subject, at in recently.calls + begun
            if family in self._actors
        ]
        self._brakes.restore(calls, recently.failures)

    def _wait_seconds(self) -> float:
        wake_at = min(self._poll_at, self._brakes.wake_at)
        if self._to_record:
            wake_at = min(wake_at, self._writing.until)
        if self._later and self._workers.has_room_for_retry:
            wake_at = min(wake_at, self._later[0][0])
        return max(0.0, wake_at - time.monotonic())

    def _take_results(self, wait_seconds: float) -> None:
        for work, found in self._workers.results(wait_seconds):
            if isinstance(found, Exception):
                result: Result = TryAgain(f"an error in the executor itself: {found!r}")
                self._brakes.ended(work.decision.decision_id, called=True)
            else:
                result, standing = found
                self._brakes.ended(work.decision.decision_id, called=standing.calls > work.standing.calls)
                work.standing = standing
            failures = work.failures
            self._take_result(work, result)
            # After a failure the subject may not answer: those after it must leave threads to other subjects.
            self._end_turn(work.subject, failed=work.failures > failures)

    def _end_turn(self, subject: tuple[str, str], failed: bool) -> None:
        """Let the works that have waited for a try of their subject go on."""
        for work in self._turns.pop(subject):
            if failed or work.failures:
                self._try_at(time.monotonic(), work)
            else:
                self._fresh.append(work)

    def _take_result(self, work: Work, result: Result) -> None:
        """Ends a decision whose time is over, if the try settled nothing."""
        step: _Recordable = result
        if isinstance(result, TryAgain) and (result.held or (work.only_looks and not result.confirms)):
            work.held_since = work.held_since or self._clock()
            self._brakes.wait(self._candidate(work), work)
            return
        if isinstance(result, TryAgain) and result.at_once:
            work.conflicts += 1
        if isinstance(result, TryAgain) and not _is_prompt(work, result):
            work.failures += 1
            waited = (self._clock() - work.begun_at).total_seconds() if work.begun_at else 0.0
            if waited >= self._settings.give_up_seconds and not result.confirms:
                step = Ended("failed", result.seen, f"given up after {waited:.0f} s: {result.reason}")
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
            self._brakes.read()
            rows = self._tail.read(self._known)
        except LAKE_ERRORS as error:
            self._reading.failed(error)
            return
        for row in rows:
            work = self._take_up(row)
            if work is not None:
                self._begin(work)
        try:
            self._answer()
        except LAKE_ERRORS as error:
            self._reading.failed(error)
            return
        self._reading.succeeded()

    def _answer(self) -> None:
        """Announces again how decisions ended that came again. Raises what Delta raises: then it is done later.

        A scan of the whole table leaves out the decisions that are known: then all that somebody may be waiting for
        count as ones that came again.
        """
        self._was_scanned |= self._tail.scanned
        if self._was_scanned:
            self._to_answer |= self._unheard()
            self._was_scanned = False
        ended = self._to_answer - self._open.keys()
        if ended:
            for end in self._ledger.ends(ended):
                self._announcer.announce(end)
        self._to_answer.clear()

    def _unheard(self) -> set[str]:
        """Return the known decisions whose end the job may still wait for.

        - The newest of each subject and action, whenever that was: the job takes no further split of a topic while one
          is open, and no further merge while anything is. If a job with a new checkpoint has taken them again, it waits
          although `events` has their end.
        - Of two days, those whose end is not in `events`: the job has forgotten older ones where it decides further on
          a subject with open decisions (family `bundles`: half an hour).

        To hear of an end twice changes nothing, so too many are better than too few.
        """
        first = (self._clock() - timedelta(days=1)).date()
        recent = {end.decision_id for end in self._ledger.ends_since(first)}
        unrecorded = recent - self._announcer.recorded_since(first) if recent else recent
        return unrecorded | self._known.intersection(self._tail.newest("family", "subject", "action"))

    def _take_up(self, row: StoredRow) -> Work | None:
        """Open the decision in a row, unless it is known, or its subject another executor's."""
        if row["family"] in self._elsewhere or not self._ledger.covers(str(row["subject"] or "")):
            return None
        decision = read_decision(row, self._actors)
        if decision.decision_id in self._known:
            self._to_answer.add(decision.decision_id)
            return None
        self._known.add(decision.decision_id)
        work = self._open[decision.decision_id] = Work(decision, row["decided_at"])
        self._of_subject[work.subject].append(work)
        return work

    def _begin(self, work: Work) -> None:
        """Take the first step of an open decision."""
        if isinstance(work.decision, Malformed):
            self._to_record.append((work, Ended("rejected", None, work.decision.why)))
        elif self._observe:
            work.begun_at = self._clock()
            self._fresh.append(work)
        elif work.begun_at is not None:
            self._fresh.append(work)
        else:
            self._brakes.wait(self._candidate(work), work)

    def _release(self) -> None:
        """What no brake holds goes on: to its intent, or, if that is on record, to another try."""
        for work, over in self._brakes.released():
            if over is not None:
                self._to_record.append((work, Ended(over.status, None, over.why)))
            elif work.begun_at is None:
                self._to_record.append((work, _Begin()))
            else:
                if work.held_since is not None:
                    now = self._clock()
                    work.begun_at = work.begun_at + (now - work.held_since) if work.failures else now
                    work.held_since = None
                self._fresh.append(work)

    def _candidate(self, work: Work) -> Candidate:
        family, subject = work.subject
        namespace = self._actors[family].namespace(subject)
        return Candidate(
            work.decision.decision_id, family, subject, namespace, work.decided_at, work.begun_at is not None
        )  # fmt: skip

    def _record(self) -> None:
        """One commit with all steps that are ready; they take effect only after it."""
        if not self._to_record or time.monotonic() < self._writing.until:
            return
        now = self._clock()
        self._to_record = [(work, self._in_time(work, step, now)) for work, step in self._to_record]
        rows = [self._row(work, step, now) for work, step in self._to_record]
        failures = [(row.at, f"{row.subject}: {row.error}") for row in rows if is_failure(row.status, row.attempt)]
        try:
            if failures:
                self._ledger.check_lease()
                self._stop_at_limit(failures)
            self._ledger.append(rows)
        except LAKE_ERRORS as error:
            self._writing.failed(error)
            return
        self._writing.succeeded()
        if failures:
            # Again: another shard may have recorded its own meanwhile, and have seen as little of these.
            with suppress(*LAKE_ERRORS):
                self._stop_at_limit(failures)
        self._brakes.count_failures(failures)
        recorded, self._to_record = self._to_record, []
        for (work, step), row in zip(recorded, rows, strict=True):
            if isinstance(step, Ended):
                self._end(work, row)
            elif isinstance(step, TryAgain):
                self._retry_later(work, step)
            else:
                work.begun_at = row.at
                self._fresh.append(work)

    def _stop_at_limit(self, failures: list[tuple[datetime, str]]) -> None:
        """Stop the fleet if these failures are too many with those on record, of all shards. Raises what Delta raises.

        Called before they are recorded: then a crash between the two forgets neither.
        """
        if self._settings.brakes.failures:
            first = failures[-1][0] - timedelta(seconds=self._settings.brakes.failures_seconds)
            self._brakes.stop_at_limit(failures, self._ledger.failures_elsewhere(first))

    def _in_time(self, work: Work, step: _Recordable, now: datetime) -> _Recordable:
        """Return the step, unless it begins a decision that is no longer right: too old, or replaced by a later one."""
        if not isinstance(step, _Begin):
            return step
        over = expired(work.decided_at, now, self._settings.begin_max_age_seconds) or self._replaced(work)
        if over is None:
            return step
        self._brakes.ended(work.decision.decision_id, called=False)
        return Ended(over.status, None, over.why)

    def _replaced(self, work: Work) -> Over | None:
        """Tell a decision that a later open one on the same part of the subject replaces."""
        for other in self._of_subject[work.subject]:
            later, earlier = other.decision, work.decision
            if other.decided_at <= work.decided_at or isinstance(later, Malformed) or isinstance(earlier, Malformed):
                continue
            if later.replaces(earlier):
                return Over("superseded", f"replaced by {later}, decided at {other.decided_at:%F %T} UTC")
        return None

    def _row(self, work: Work, step: _Recordable, now: datetime) -> OutcomeRow:
        decision = work.decision
        seen = None if isinstance(step, _Begin) else step.seen
        error = step.error if isinstance(step, Ended) else step.reason if isinstance(step, TryAgain) else None
        details = dict(seen.details) if seen else {}
        if isinstance(step, Ended) and step.would is not None:
            details["would"] = step.would
        return self._ledger.row(
            decision_id=decision.decision_id,
            family=decision.family,
            subject=decision.subject,
            status=step.status if isinstance(step, Ended) else INTENT,
            attempt=work.standing.calls,
            at=now,
            layout_epoch=seen.layout_epoch if seen else None,
            seen=details,
            error=error and _printable(error),
        )

    def _end(self, work: Work, row: OutcomeRow) -> None:
        log.info("%s: %s%s", work.decision, row.status, f": {row.error}" if row.error else "")
        del self._open[row.decision_id]
        self._of_subject[work.subject].remove(work)
        if not self._of_subject[work.subject]:
            del self._of_subject[work.subject]
        self._announcer.announce(RecordedEnd(row.decision_id, row.family, row.subject, row.status, row.error, row.at))

    def _retry_later(self, work: Work, step: TryAgain) -> None:
        if _is_prompt(work, step):
            self._fresh.append(work)
            return
        delay = self._backoff.slowly() if step.slowly else self._backoff.after(work.failures)
        if work.begun_at is not None and not step.confirms:
            left = self._settings.give_up_seconds - (self._clock() - work.begun_at).total_seconds()
            delay = min(delay, max(0.0, left))
        self._try_at(time.monotonic() + delay, work)

    def _try_at(self, at: float, work: Work) -> None:
        heapq.heappush(self._later, (at, next(self._numbers), work))

    def _dispatch(self) -> None:
        while self._fresh and self._workers.has_room:
            self._start(self._fresh.popleft(), retry=False)
        while self._later and self._later[0][0] <= time.monotonic() and self._workers.has_room_for_retry:
            self._start(heapq.heappop(self._later)[2], retry=True)

    def _start(self, work: Work, retry: bool) -> None:
        """Try a decision, or have it wait for its subject's turn."""
        if work.subject in self._turns:
            self._turns[work.subject].append(work)
            return
        decision, standing = work.decision, work.standing
        assert isinstance(decision, Decision)
        actor = self._actors[decision.family]
        if self._observe:
            self._turns[work.subject] = []
            self._workers.give(work, retry, lambda: observe_once(decision, standing, actor))
            return
        candidate = self._candidate(work)
        held = work.only_looks = self._brakes.ask(candidate) is not None
        if held and work.held_since is not None:
            self._brakes.wait(candidate, work)
            return

        def may_call() -> bool:
            return not held and not self._stopping.is_set() and not self._brakes.holds_now(candidate)

        self._turns[work.subject] = []
        self._workers.give(work, retry, lambda: try_once(decision, standing, actor, may_call, self._holds_lease))

    def _finish(self) -> None:
        """No new tries; running calls get their time, and their results are recorded and announced."""
        self._workers.forget_waiting()
        end = time.monotonic() + STOP_SECONDS
        while self._workers.busy and time.monotonic() < end:
            self._take_results(end - time.monotonic())
        self._to_record = [(work, step) for work, step in self._to_record if isinstance(step, Ended)]
        self._writing.until = 0.0
        self._record()
        self._announcer.close()
        log.info("stopped with %d open decisions; the next start goes on with them", self.open_decisions)


def _is_prompt(work: Work, step: TryAgain) -> bool:
    """Return whether a retry needs no delay, and its try counts as no failure."""
    return step.at_once and work.conflicts <= MAX_CONFLICTS


def _printable(error: str) -> str:
    """As much of an error's text as is kept; a server may say what is no valid Unicode."""
    return error[:MAX_ERROR].encode("utf-8", "replace").decode()
