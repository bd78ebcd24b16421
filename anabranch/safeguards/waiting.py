"""Waiting decisions by brake, and their release.

Stage: between the pure rules beside it and `anabranch.executor.kernel.loop`, which asks before each intent and each
further call. Owned by the loop's thread, except for `holds_now`. Nothing here has to survive a crash: pauses, approvals
and stops are in `brakes`, calls and failures in `outcomes`.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from anabranch.safeguards.rate import CallSlots
from anabranch.safeguards.record import WaitTable
from anabranch.safeguards.rules import BRAKES, Brake, HeldBySafeguard, Over, PendingDecision, expires_at, held_by
from anabranch.safeguards.windows import may_act
from lake.brakes import ALL, Acts, BrakeLog, SafeguardAct
from schemas.settings.processes import ExecutorSettings

log = logging.getLogger(__name__)

Work = TypeVar("Work")


@dataclass
class _Waiting(Generic[Work]):
    candidate: PendingDecision
    work: Work


@dataclass(frozen=True)
class SafeguardCounters:
    """Counters of the brakes at an instant."""

    waiting: Mapping[Brake, int]
    """Waiting decisions by brake."""
    is_stopped: bool
    pauses: int
    is_window_open: bool
    failures: int
    """Failures that count towards a stop."""
    calls: int
    """Calls since the start."""


class Brakes(Generic[Work]):
    """Brakes of one executor. `wall`: aware instants, `steady`: seconds of a monotonic clock."""

    def __init__(
        self,
        settings: ExecutorSettings,
        record: BrakeLog,
        waits: WaitTable,
        actor: str,
        wall: Callable[[], datetime],
        steady: Callable[[], float],
    ) -> None:
        """`actor` is the author of automatic stops, shown to operators."""
        self._settings, self._record, self._waits, self._actor = settings, record, waits, actor
        self._wall, self._steady = wall, steady
        self._fleet = CallSlots(settings.brakes.actions_per_minute)
        self._namespaces: dict[str | None, CallSlots] = {}
        self._granted: dict[str, str | None] = {}
        self._failures: list[datetime] = []
        self._calls = 0
        self._new: list[_Waiting[Work]] = []
        self._waiting: dict[Brake, dict[str, _Waiting[Work]]] = {brake: {} for brake in BRAKES}
        self._look_at: dict[Brake, float] = dict.fromkeys(BRAKES, math.inf)

    @property
    def acts(self) -> Acts:
        """Return the pauses, approvals, rejections and stops read so far."""
        return self._record.acts

    def standing(self) -> SafeguardCounters:
        """Return counters for operators, from any thread; they may be slightly late."""
        now = self._wall()
        first = now - timedelta(seconds=self._settings.brakes.failures_seconds)
        return SafeguardCounters(
            waiting={brake: len(waiting) for brake, waiting in self._waiting.items()},
            is_stopped=self.acts.stop is not None,
            pauses=len(self.acts.paused(now)),
            is_window_open=may_act(self._settings.brakes.windows, now),
            failures=sum(failed_at > first for failed_at in list(self._failures)),
            calls=self._calls,
        )

    @property
    def wake_at(self) -> float:
        """Return when to call `released` again, by the monotonic clock."""
        return -math.inf if self._new else min(self._look_at.values())

    def restore(self, calls: list[tuple[str | None, datetime]], failures: list[datetime]) -> None:
        """Restore recent calls (namespace and end) and failures from the outcome table."""
        now, wall = self._steady(), self._wall()
        for namespace, instant in sorted(calls, key=lambda call: call[1]):
            until = now - max(0.0, (wall - instant).total_seconds())
            self._fleet.count(until)
            self._places(namespace).count(until)
        resumed = self.acts.resumed_at
        self._failures += [instant for instant in failures if resumed is None or instant > resumed]

    def read(self) -> None:
        """Read new acts. Raises Delta's errors."""
        resumed = self.acts.resumed_at
        if self._record.read():
            self._look_at = dict.fromkeys(BRAKES, -math.inf)
        if self.acts.resumed_at != resumed:
            self._failures.clear()

    def wait(self, candidate: PendingDecision, work: Work) -> None:
        """Queue a decision; `released` returns it, at once if nothing holds it."""
        self._new.append(_Waiting(candidate, work))

    def released(self) -> Iterator[tuple[Work, Over | None]]:
        """Yield the work that may go on, each with a slot of the rate limit, and the work that is over."""
        now = self._steady()
        for brake in BRAKES:
            if self._look_at[brake] <= now:
                yield from self._look_again(brake)
        new, self._new = self._new, []
        for waiting in new:
            yield from self._look(waiting, None)

    def ask(self, candidate: PendingDecision) -> HeldBySafeguard | Over | None:
        """Return what holds a decision now; None: it occupies a slot of the rate limit until `ended`."""
        if (held := held_by(candidate, self.acts, self._settings, self._wall())) is not None:
            self.ended(candidate.decision_id, False)
            return held
        return None if candidate.decision_id in self._granted else self._rate(candidate)

    def holds_now(self, candidate: PendingDecision) -> bool:
        """Return whether a known brake now holds a decision that was granted a slot. From any thread."""
        return held_by(replace(candidate, has_begun=True), self.acts, self._settings, self._wall()) is not None

    def ended(self, decision_id: str, called: bool) -> None:
        """Record the end of a try: its slot stays occupied for a minute if it made a call, else it is free."""
        if decision_id not in self._granted:
            return
        self._calls += called
        namespace, now = self._granted.pop(decision_id), self._steady()
        for limit in (self._fleet, self._places(namespace)):
            limit.end(decision_id, now if called else None)
        if not called and self._waiting["rate"]:
            self._look_at["rate"] = -math.inf

    def stop_at_limit(self, failures: list[tuple[datetime, str]], elsewhere: list[datetime]) -> None:
        """Write a stop if these and all other failures reach the limit. Raises Delta's errors."""
        limit, seconds = self._settings.brakes.failures, self._settings.brakes.failures_seconds
        if not failures or not limit or self.acts.stop is not None:
            return
        first = failures[-1][0] - timedelta(seconds=seconds)
        self._failures = [failed_at for failed_at in self._failures if failed_at > first]
        resumed = self.acts.resumed_at
        failed_elsewhere = sum(
            failed_at > first and (resumed is None or failed_at > resumed) for failed_at in elsewhere
        )
        count = len(self._failures) + failed_elsewhere + len(failures)
        if count < limit:
            return
        reason = f"{count} failures within {seconds:g} s, the last: {failures[-1][1]}"
        stop = SafeguardAct("stop", ALL, reason, self._actor, failures[-1][0])
        self._record.write(lambda acts: [] if acts.stop else [stop])
        self._look_at = dict.fromkeys(BRAKES, -math.inf)
        log.error("stopped: %s. Go on with: anabranch decisions resume all --reason …", reason)

    def count_failures(self, failures: list[tuple[datetime, str]]) -> None:
        """Count failures that have been recorded."""
        self._failures += [failed_at for failed_at, _ in failures]

    def write(self) -> None:
        """Record the brakes that have begun to hold decisions. Never raises."""
        self._waits.write(self._steady())

    def _look_again(self, brake: Brake) -> Iterator[tuple[Work, Over | None]]:
        self._look_at[brake] = math.inf
        for waiting in list(self._waiting[brake].values()):
            full = self._full(waiting.candidate.namespace) if brake == "rate" else None
            if full is None:
                yield from self._look(waiting, brake)
                continue
            self._look_at[brake] = min(self._look_at[brake], full.free_at(self._steady()))
            if full is self._fleet:
                return

    def _look(self, waiting: _Waiting[Work], before: Brake | None) -> Iterator[tuple[Work, Over | None]]:
        candidate = waiting.candidate
        answer = self.ask(candidate)
        if before is not None and (not isinstance(answer, HeldBySafeguard) or answer.brake != before):
            del self._waiting[before][candidate.decision_id]
        if not isinstance(answer, HeldBySafeguard):
            yield waiting.work, answer
            return
        if answer.brake != before:
            self._waiting[answer.brake][candidate.decision_id] = waiting
            self._waits.note(candidate, answer, self._wall())
        ends = [] if answer.until is None else [answer.until]
        if not candidate.has_begun:
            ends.append(expires_at(candidate, self._settings))
        for end in ends:
            left = max(0.0, (end - self._wall()).total_seconds())
            self._look_at[answer.brake] = min(self._look_at[answer.brake], self._steady() + left)

    def _rate(self, candidate: PendingDecision) -> HeldBySafeguard | None:
        if (full := self._full(candidate.namespace)) is not None:
            now = self._steady()
            whose, key = "fleet", "actions_per_minute"
            if full is not self._fleet:
                whose, key = f"namespace {candidate.namespace}", "actions_per_minute_per_namespace"
            why = f"the {whose} has had {full.limit} actions in 60 s, [executor.brakes] {key}"
            return HeldBySafeguard("rate", why, self._wall() + timedelta(seconds=full.free_at(now) - now))
        self._fleet.grant(candidate.decision_id)
        self._places(candidate.namespace).grant(candidate.decision_id)
        self._granted[candidate.decision_id] = candidate.namespace
        return None

    def _full(self, namespace: str | None) -> CallSlots | None:
        """Return the rate limiter, of the fleet or the namespace, that has no free slot; None: both have one."""
        now = self._steady()
        return next((limit for limit in (self._fleet, self._places(namespace)) if not limit.is_free(now)), None)

    def _places(self, namespace: str | None) -> CallSlots:
        """Return the rate limiter of a namespace. A subject without one is limited by the fleet's alone."""
        if namespace not in self._namespaces:
            limit = 0 if namespace is None else self._settings.brakes.actions_per_minute_per_namespace
            self._namespaces[namespace] = CallSlots(limit)
        return self._namespaces[namespace]
