"""Apply open decisions: record the intent, then act; record the end, then announce it.

Stage: the heart of the executor. One thread (the caller of `run`) owns all state here, polls the tail, makes every
Delta commit (everything ready at the same time goes into one) and announces. Worker threads only look and call
(`attempt`, in `workers`). The family of a decision only selects the `Actor`.

Each open decision passes through these states on its own:

 new       its row was read; `brakes` hold it until the call is allowed
 begun     its intent is durable; a crash from here on leads to another look, never to a second effect
 trying    a worker looks, judges, and calls at most once
 waiting   for a delay after an inconclusive try, or for a brake that has closed since
 ended     its end is durable, and announced until the job has recorded it

Decisions on one subject, for instance of one evaluation, concern disjoint parts of it. So they are tried in any order,
and a waiting one blocks no other. Only the tries on a subject are serialized: two calls at once would conflict, and
each must act on the state seen right before it. Waiting occupies no thread.

Why not one thread per decision: each durable step would be a Delta commit of its own, and commits of one table queue
up. One thread collects what is ready and commits it at once, so that a burst of decisions costs few commits. Why the
intent comes before the call, though it costs a commit: after a crash nobody can tell from the cluster alone whether a
change is ours, or somebody else's that looks the same.

Longer than other modules because all of it is one thread's state.
"""

import heapq
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import count

from anabranch.executor.kernel.announcer import Announcer
from anabranch.executor.kernel.attempt import (
    AttemptProgress,
    DecisionEnded,
    DecisionWork,
    Result,
    TryAgain,
    observe_once,
    try_once,
)
from anabranch.executor.kernel.decision import Malformed, read_decision
from anabranch.executor.kernel.family import Actors, Decision
from anabranch.executor.kernel.outages import LAKE_ERRORS, Outage
from anabranch.executor.kernel.outcomes import INTENT, OutcomeLedger, is_failure, read_end
from anabranch.executor.kernel.workers import Workers
from anabranch.safeguards.rate import WINDOW_SECONDS as COUNTED_SECONDS
from anabranch.safeguards.rules import Over, PendingDecision, expired
from anabranch.safeguards.waiting import Brakes
from lake.tail import StoredRow, Tail
from runtime.backoff import Backoff
from schemas.kafka.messages import EXPIRED
from schemas.settings.processes import ExecutorSettings
from schemas.tables.rows import OutcomeRow

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""Longest wait for running calls at a clean stop; the next start reads their effect from the layout."""
RETRY_DELAY_SECONDS = 0.2
"""Delay after a call without a response; later delays are random, up to twice as long each time."""
RETRY_MAX_DELAY_SECONDS = 15.0
IDLE_LOOK_SECONDS = 60.0
"""Longest time between looks at lease and brakes in an object store while nothing is open: each is a request."""
MAX_CONFLICTS = 8
"""Conflicts of a decision with other changes that are retried at once; later ones are delayed."""
MAX_ERROR = 2_000
"""Maximum length of a recorded error text, in characters."""


def utc_now() -> datetime:
    """Return the wall-clock time in UTC."""
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class _Begin:
    """Step that records the intent of a decision before it is acted on."""


_Recordable = _Begin | DecisionEnded | TryAgain


class Executor:
    """Applies the decisions of `tail` through their actors; records in `ledger`, announces outcomes.

    Decisions are identified by id. A known one that is read again, as after a new checkpoint of the job, is not acted
    on again. If it has ended, its end is announced again, because the job waits for it.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        tail: Tail,
        ledger: OutcomeLedger,
        actors: Actors,
        announcer: Announcer,
        brakes: Brakes[DecisionWork],
        clock: Callable[[], datetime] = utc_now,
        holds_lease: Callable[[], bool] = lambda: True,
        elsewhere: Collection[str] = (),
    ) -> None:
        """`holds_lease` is asked by any thread before a call; `elsewhere`: families of other processes."""
        self._holds_lease, self._elsewhere = holds_lease, frozenset(elsewhere)
        self._settings, self._tail, self._ledger = settings, tail, ledger
        self._actors, self._announcer, self._clock = actors, announcer, clock
        self._brakes = self.brakes = brakes
        self._observe = settings.mode == "observe"
        self._backoff = Backoff(RETRY_DELAY_SECONDS, RETRY_MAX_DELAY_SECONDS)
        self._known: set[str] = set()
        self._open: dict[str, DecisionWork] = {}
        """By decision id."""
        self._of_subject: defaultdict[tuple[str, str], list[DecisionWork]] = defaultdict(list)
        """Open work by family and subject."""
        self._turns: dict[tuple[str, str], list[DecisionWork]] = {}
        """Subjects with a try under way, each with the work that is due to be tried next."""
        self._to_answer: set[str] = set()
        self._was_scanned = False
        self._fresh: deque[DecisionWork] = deque()
        self._later: list[tuple[float, int, DecisionWork]] = []
        self._numbers: Iterator[int] = count()
        self._to_record: list[tuple[DecisionWork, _Recordable]] = []
        self._poll_at = self._full_look_at = 0.0
        self.looped_at = time.monotonic()
        """Time of the last pass of `run`, monotonic seconds."""
        self._reading = Outage("decisions cannot be read")
        self._writing = Outage("outcomes cannot be written")
        self._workers: Workers[DecisionWork, tuple[Result, AttemptProgress]] = Workers(settings.workers)
        self._stopping = threading.Event()

    @property
    def open_decisions(self) -> int:
        """Number of open decisions."""
        return len(self._open)

    @property
    def has_calls_out(self) -> bool:
        """True while a try is still running, after `run` stopped waiting for it."""
        for _ in self._workers.results(0):
            continue
        return self._workers.busy

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; `ready` is called once the record has been read.

        Raises `LeaseLost` when another executor has taken over, and `DeltaError` or `OSError` when the record cannot be
        read at the start.
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
            self._workers.stop()

    def stop(self) -> None:
        """Finish running calls within `STOP_SECONDS` and end `run`. For any thread and for signal handlers."""
        self._stopping.set()
        self._workers.wake()

    def _restore(self) -> None:
        """Rebuild open decisions and counters from the record, then take each decision's first step.

        Announces again the ends that the job may still wait for. Raises Delta's errors.
        """
        recorded = self._ledger.recorded()
        self._brakes.read()
        # Ends first: the tail then leaves out decisions that are over, and reads the open ones only.
        self._known |= recorded.ended
        self._announcer.open()
        for row in self._tail.read(self._known):
            self._take_up(row)
        self._answer()
        for decision_id, work in self._open.items():
            if (begun := recorded.begun.get(decision_id)) is not None:
                # Its call may or may not have been made: the first look of the new life finds out.
                work.begun_at = begun.at
                work.standing = AttemptProgress(calls=begun.calls, open_end=True)
        # Before the first step: a restart must not be a way around the rate limit.
        self._restore_counts()
        for work in self._open.values():
            self._begin(work)

    def _restore_counts(self) -> None:
        """Restore the brakes' counters; each intent counts as a call that ends now, as it may have."""
        now = self._clock()
        seconds = max(COUNTED_SECONDS, self._settings.brakes.failures_seconds)
        recently = self._ledger.since(now - timedelta(seconds=seconds))
        begun = [(*work.subject, now) for work in self._open.values() if work.begun_at]
        calls = [
            (self._actors[family].namespace(subject), called_at)
            for family, subject, called_at in recently.calls + begun
            if family in self._actors
        ]
        self._brakes.restore(calls, recently.failures)

    def _wait_seconds(self) -> float:
        wake_at = min(self._poll_at, self._brakes.wake_at)
        if self._to_record:
            wake_at = min(wake_at, self._writing.until)
        # Without room a due retry would wake this thread again and again, to no effect.
        if self._later and self._workers.has_room_for_retry:
            wake_at = min(wake_at, self._later[0][0])
        return max(0.0, wake_at - time.monotonic())

    def _take_results(self, wait_seconds: float) -> None:
        for work, outcome in self._workers.results(wait_seconds):
            if isinstance(outcome, Exception):
                result: Result = TryAgain(f"an error in the executor itself: {outcome!r}")
                self._brakes.ended(work.decision.decision_id, called=True)
                work.standing = replace(work.standing, open_end=True)
            else:
                result, progress = outcome
                self._brakes.ended(work.decision.decision_id, called=progress.calls > work.standing.calls)
                work.standing = progress
            failures = work.failures
            self._take_result(work, result)
            # After a failure the subject may not respond: later tries on it must leave threads to other subjects.
            self._end_turn(work.subject, failed=work.failures > failures)

    def _end_turn(self, subject: tuple[str, str], failed: bool) -> None:
        """Release the work that waited for the try on its subject."""
        for work in self._turns.pop(subject):
            if failed or work.failures:
                self._try_at(time.monotonic(), work)
            else:
                self._fresh.append(work)

    def _take_result(self, work: DecisionWork, result: Result) -> None:
        """Schedule the next step after a try; fail a decision that is past its deadline."""
        step: _Recordable = result
        if isinstance(result, TryAgain) and result.held and (late := self._too_late_to_repeat(work)) is not None:
            sent = "was" if work.standing.calls else "may have been"
            why = f"{late.why} (a call {sent} sent, its outcome is unknown)"
            self._to_record.append((work, DecisionEnded(late.status, result.seen, why)))
            return
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
                why = f"given up after {waited:.0f} s: {result.reason}"
                step = DecisionEnded("failed", result.seen, why)
                if result.is_outage:
                    step = DecisionEnded("superseded", result.seen, EXPIRED + why)
            else:
                level = logging.WARNING if work.failures == 1 else logging.DEBUG
                log.log(level, "%s is not settled, trying again: %s", work.decision, result.reason)
        # In mode `observe` nothing was called, so there is no progress to record.
        if isinstance(step, TryAgain) and self._observe:
            self._retry_later(work, step)
        else:
            self._to_record.append((work, step))

    def _take_decisions(self) -> None:
        now = time.monotonic()
        if now < self._poll_at:
            return
        # From now, not from the last time: after a long commit polls must not follow at once to catch up.
        self._poll_at = now + self._settings.poll_ms / 1000
        if now < self._reading.until:
            return
        is_idle = not (self._open or self._to_answer or self._was_scanned)
        try:
            if is_idle and now < self._full_look_at and self._tail.is_known_to_end():
                return
            # The lease before the rows: whoever lost it must not open decisions of its successor. The brakes before
            # the rows as well, so that no decision is begun on a pause that was already there.
            self._ledger.check_lease()
            self._brakes.read()
            rows = self._tail.read(self._known)
        except LAKE_ERRORS as error:
            self._reading.failed(error)
            return
        for row in rows:
            if (work := self._take_up(row)) is not None:
                self._begin(work)
        try:
            self._answer()
        except LAKE_ERRORS as error:
            self._reading.failed(error)
            return
        self._reading.succeeded()
        self._full_look_at = now + IDLE_LOOK_SECONDS

    def _answer(self) -> None:
        """Announce again the ends of decisions that were read again.

        Raises Delta's errors; retried later then.

        A scan of the whole table skips known decisions. So after a scan, every known decision whose end may be awaited
        counts as read again.
        """
        self._was_scanned |= self._tail.scanned
        if self._was_scanned:
            self._to_answer |= self._unheard()
            self._was_scanned = False
        if ended := self._to_answer - self._open.keys():
            for end in self._ledger.ends(ended):
                self._announcer.announce(end)
        self._to_answer.clear()

    def _unheard(self) -> set[str]:
        """Return the known decisions whose end the job may still wait for.

        - The newest of each subject and action, of any age: the job decides no further split of a topic while one is
          open, and no further merge while anything is. A job with a new checkpoint may have read these decisions again;
          it then waits although `events` has their end.
        - Of the last two days, those whose end is not in `events`. Where the job decides on a subject that has open
          decisions (family `bundles`), it drops older ones itself, after half an hour.

        Duplicate announcements are harmless, so too many are better than too few.
        """
        first = (self._clock() - timedelta(days=1)).date()
        recent = {(end.decision_id, end.status) for end in self._ledger.ends_since(first)}
        unrecorded = recent - self._announcer.recorded_since(first) if recent else recent
        return {decision_id for decision_id, _ in unrecorded} | self._known.intersection(
            self._tail.newest_values("family", "subject", "action")
        )

    def _take_up(self, row: StoredRow) -> DecisionWork | None:
        """Open the decision in a row, unless it is known or belongs to another shard or process."""
        if row["family"] in self._elsewhere or not self._ledger.covers(str(row["subject"] or "")):
            return None
        decision = read_decision(row, self._actors)
        if decision.decision_id in self._known:
            self._to_answer.add(decision.decision_id)
            return None
        self._known.add(decision.decision_id)
        work = self._open[decision.decision_id] = DecisionWork(decision, row["decided_at"])
        self._of_subject[work.subject].append(work)
        return work

    def _begin(self, work: DecisionWork) -> None:
        """Take the first step of an open decision."""
        if isinstance(work.decision, Malformed):
            self._to_record.append((work, DecisionEnded("rejected", None, work.decision.why)))
        elif self._observe:
            work.begun_at = self._clock()
            self._fresh.append(work)
        elif work.begun_at is not None:
            self._fresh.append(work)
        else:
            self._brakes.wait(self._candidate(work), work)

    def _release(self) -> None:
        """Continue work that no brake holds: record its intent or, if that is on record, try again."""
        for work, over in self._brakes.released():
            if over is not None:
                self._to_record.append((work, DecisionEnded(over.status, None, over.why)))
            elif work.begun_at is None:
                self._to_record.append((work, _Begin()))
            elif (late := self._late(work)) is not None:
                self._brakes.ended(work.decision.decision_id, called=False)
                self._to_record.append((work, DecisionEnded(late.status, None, late.why)))
            else:
                if work.held_since is not None:
                    now = self._clock()
                    work.begun_at = work.begun_at + (now - work.held_since) if work.failures else now
                    work.held_since = None
                self._fresh.append(work)

    def _late(self, work: DecisionWork) -> Over | None:
        """Return the end of a decision held for too long between its intent and its first call, or None."""
        if work.may_have_called:
            return None
        return expired(work.decided_at, self._clock(), self._settings.begin_max_age_seconds)

    def _too_late_to_repeat(self, work: DecisionWork) -> Over | None:
        """Return the end of a decision that is too old for another call, or None. For any thread."""
        if not work.may_have_called or isinstance(work.decision, Malformed) or work.decision.repeats_late:
            return None
        return expired(work.decided_at, self._clock(), self._settings.begin_max_age_seconds)

    def _candidate(self, work: DecisionWork) -> PendingDecision:
        family, subject = work.subject
        namespace = self._actors[family].namespace(subject)
        return PendingDecision(
            work.decision.decision_id, family, subject, namespace, work.decided_at, work.begun_at is not None
        )

    def _record(self) -> None:
        """Commit all ready steps at once; they take effect only after the commit."""
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
            # Check again: another shard may have committed failures meanwhile, without seeing these either.
            with suppress(*LAKE_ERRORS):
                self._stop_at_limit(failures)
        self._brakes.count_failures(failures)
        recorded, self._to_record = self._to_record, []
        for (work, step), row in zip(recorded, rows, strict=True):
            if isinstance(step, DecisionEnded):
                self._end(work, row)
            elif isinstance(step, TryAgain):
                self._retry_later(work, step)
            else:
                work.begun_at = row.at
                self._fresh.append(work)

    def _stop_at_limit(self, failures: list[tuple[datetime, str]]) -> None:
        """Stop the fleet if these failures and those on record, of all shards, reach the limit.

        Called before they are recorded, so that a crash between the two forgets neither. Raises Delta's errors.
        """
        if self._settings.brakes.failures:
            first = failures[-1][0] - timedelta(seconds=self._settings.brakes.failures_seconds)
            self._brakes.stop_at_limit(failures, self._ledger.failures_elsewhere(first))

    def _in_time(self, work: DecisionWork, step: _Recordable, now: datetime) -> _Recordable:
        """Return the step; instead of beginning an expired, baseless or replaced decision, its end."""
        if not isinstance(step, _Begin):
            return step
        limit = self._settings.begin_max_age_seconds
        over = expired(work.decided_at, now, limit) or self._baseless(work, now) or self._replaced(work)
        if over is None:
            return step
        self._brakes.ended(work.decision.decision_id, called=False)
        return DecisionEnded(over.status, None, over.why)

    def _baseless(self, work: DecisionWork, now: datetime) -> Over | None:
        """Return the end of a decision that rests on an earlier one that has expired, or None."""
        limit = self._settings.begin_max_age_seconds
        for earlier in self._of_subject[work.subject]:
            if earlier.begun_at is None and expired(earlier.decided_at, now, limit):
                work.lose_basis(earlier)
        return None if work.baseless is None else Over("superseded", work.baseless)

    def _replaced(self, work: DecisionWork) -> Over | None:
        """Return the end of a decision that a later open one replaces, or None."""
        for other in self._of_subject[work.subject]:
            later, earlier = other.decision, work.decision
            if other.decided_at <= work.decided_at or isinstance(later, Malformed) or isinstance(earlier, Malformed):
                continue
            if later.replaces(earlier):
                return Over("superseded", f"replaced by {later}, decided at {other.decided_at:%F %T} UTC")
        return None

    def _row(self, work: DecisionWork, step: _Recordable, now: datetime) -> OutcomeRow:
        decision = work.decision
        seen = None if isinstance(step, _Begin) else step.seen
        error = step.error if isinstance(step, DecisionEnded) else step.reason if isinstance(step, TryAgain) else None
        details = dict(seen.details) if seen else {}
        if isinstance(step, DecisionEnded) and step.would is not None:
            details["would"] = step.would
        return self._ledger.row(
            decision_id=decision.decision_id,
            family=decision.family,
            subject=decision.subject,
            status=step.status if isinstance(step, DecisionEnded) else INTENT,
            attempt=work.standing.calls,
            at=now,
            layout_epoch=seen.layout_epoch if seen else None,
            seen=details,
            error=error and error[:MAX_ERROR].encode("utf-8", "replace").decode(),
        )

    def _end(self, work: DecisionWork, row: OutcomeRow) -> None:
        log.info("%s: %s%s", work.decision, row.status, f": {row.error}" if row.error else "")
        del self._open[row.decision_id]
        self._of_subject[work.subject].remove(work)
        if row.status == "superseded" and (row.error or "").startswith(EXPIRED):
            for later in self._of_subject[work.subject]:
                later.lose_basis(work)
        if not self._of_subject[work.subject]:
            del self._of_subject[work.subject]
        self._announcer.announce(read_end(row.model_dump()))

    def _retry_later(self, work: DecisionWork, step: TryAgain) -> None:
        if _is_prompt(work, step):
            self._fresh.append(work)
            return
        delay = self._backoff.slowly() if step.slowly else self._backoff.after(work.failures)
        if work.begun_at is not None and not step.confirms:
            left = self._settings.give_up_seconds - (self._clock() - work.begun_at).total_seconds()
            delay = min(delay, max(0.0, left))
        self._try_at(time.monotonic() + delay, work)

    def _try_at(self, instant: float, work: DecisionWork) -> None:
        heapq.heappush(self._later, (instant, next(self._numbers), work))

    def _dispatch(self) -> None:
        while self._fresh and self._workers.has_room:
            self._start(self._fresh.popleft(), retry=False)
        while self._later and self._later[0][0] <= time.monotonic() and self._workers.has_room_for_retry:
            self._start(heapq.heappop(self._later)[2], retry=True)

    def _start(self, work: DecisionWork, retry: bool) -> None:
        """Try a decision, or queue it behind the running try on its subject."""
        if work.subject in self._turns:
            self._turns[work.subject].append(work)
            return
        if work.baseless is not None and not work.may_have_called:
            self._brakes.ended(work.decision.decision_id, called=False)
            self._to_record.append((work, DecisionEnded("superseded", None, work.baseless)))
            return
        decision, progress = work.decision, work.standing
        assert isinstance(decision, Decision)
        actor = self._actors[decision.family]
        if self._observe:
            self._turns[work.subject] = []
            self._workers.give(work, retry, lambda: observe_once(decision, progress, actor))
            return
        candidate = self._candidate(work)
        held = work.only_looks = self._brakes.ask(candidate) is not None
        if held and work.held_since is not None:
            self._brakes.wait(candidate, work)
            return

        def may_call() -> bool:
            is_held = held or self._stopping.is_set() or self._brakes.holds_now(candidate)
            return not is_held and self._too_late_to_repeat(work) is None

        self._turns[work.subject] = []
        self._workers.give(work, retry, lambda: try_once(decision, progress, actor, may_call, self._holds_lease))

    def _finish(self) -> None:
        """Start no new tries; wait for running calls, record and announce their results."""
        self._workers.forget_waiting()
        end = time.monotonic() + STOP_SECONDS
        while self._workers.busy and time.monotonic() < end:
            self._take_results(end - time.monotonic())
        self._to_record = [(work, step) for work, step in self._to_record if isinstance(step, DecisionEnded)]
        self._writing.until = 0.0
        self._record()
        self._announcer.close()
        log.info("stopped with %d open decisions; the next start goes on with them", self.open_decisions)


def _is_prompt(work: DecisionWork, step: TryAgain) -> bool:
    """Return whether the retry needs no delay and its try does not count as a failure."""
    return step.at_once and work.conflicts <= MAX_CONFLICTS
