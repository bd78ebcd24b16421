"""One try at one decision: look at its subject, judge, call if due, look again and judge again.

Stage: in a worker thread of `loop`, after the intent is durable. Stateless: the state of earlier tries is passed in as
`AttemptProgress` and returned changed. The response to a call is never proof of its effect (design "What must always
hold", 2): a refusal counts only when a look after it shows no effect. Nor does a single look without the subject end a
decision: the server may have stale data.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from anabranch.executor.kernel.decision import Malformed
from anabranch.executor.kernel.family import (
    Actor,
    Answer,
    Applied,
    CallRefused,
    Decision,
    Gone,
    NoAnswer,
    Observation,
    StillNeeded,
    Superseded,
    Verdict,
)
from schemas.kafka.messages import EXPIRED, OutcomeStatus


@dataclass(frozen=True)
class AttemptProgress:
    """State of earlier tries at a decision."""

    calls: int = 0
    """Calls sent, over all processes as far as recorded."""
    open_end: bool = False
    """A call may have been sent whose result is unknown, or was accepted and is not visible yet."""
    refusals: int = 0
    """Refused calls of this process."""
    absences: int = 0
    """Consecutive looks of this process without the subject, or without a possible call's effect."""


ABSENCES = 2
"""Consecutive looks, with a delay between them, that must miss a subject before it counts as gone.

The same number must show a changed subject without the effect of our call before the change counts as another's: a
stale replica may show one without the other.
"""


@dataclass(frozen=True)
class DecisionEnded:
    """The decision has reached its end."""

    status: OutcomeStatus
    seen: Observation | None
    """The last successful look of this try; None: there was none."""
    error: str | None = None
    would: str | None = None
    """In mode observe: the action that would have been taken."""


@dataclass(frozen=True)
class TryAgain:
    """Nothing is settled: look again after a delay."""

    reason: str
    seen: Observation | None = None
    slowly: bool = False
    confirms: bool = False
    """The next look confirms or corrects this one: the give-up deadline does not apply to it."""
    held: bool = False
    """Only a look was made: the call is not allowed now."""
    is_outage: bool = False
    """No call was made, for a known outage (`NoAnswer.is_outage`)."""
    at_once: bool = False
    """The call met a subject that had just changed: retry without a delay, and do not count a failure."""


Result = DecisionEnded | TryAgain


def try_once(
    decision: Decision,
    progress: AttemptProgress,
    actor: Actor[Any, Any],
    may_call: Callable[[], bool],
    holds_lease: Callable[[], bool],
) -> tuple[Result, AttemptProgress]:
    """Advance a decision by at most one call, if `may_call` right before; else the look may settle it."""
    may_have_called = progress.open_end or progress.calls > 0
    before = _look(actor, decision, may_have_called)
    if isinstance(before, NoAnswer):
        is_outage = before.is_outage and not may_have_called
        return TryAgain(before.reason, slowly=before.denied, is_outage=is_outage), progress
    progress = _counted(progress, before, may_have_called)
    if not isinstance(before.verdict, StillNeeded):
        return _settled(before, progress, may_have_called), progress
    if not may_call():
        return TryAgain("the call may not be made now", before.seen, held=True), progress
    if not holds_lease():
        return TryAgain("the lease is not renewed", before.seen), progress

    answer = actor.call(decision, before.live, holds_lease)
    # A conflict says nothing about the call itself and is retried at once, so it does not count as a refusal.
    refused = isinstance(answer, CallRefused) and not answer.is_conflict
    called = replace(progress, calls=progress.calls + 1, refusals=progress.refusals + refused)
    unsure = replace(called, open_end=progress.open_end or not isinstance(answer, CallRefused))
    after = _look(actor, decision, may_have_called=True)
    if isinstance(after, NoAnswer):
        return TryAgain(_joined(answer, after.reason), slowly=after.denied), unsure
    called, unsure = _counted(called, after, unsure.open_end), _counted(unsure, after, unsure.open_end)
    if not isinstance(after.verdict, StillNeeded):
        result = _settled(after, called, unsure.open_end, answer)
        return result, called if isinstance(result, DecisionEnded) else unsure
    if isinstance(answer, CallRefused):
        # If a stale replica answered the first look, an earlier call may become visible only now; if one answered the
        # call, the subject may. So look once more after a delay.
        if answer.is_conflict or ((progress.open_end or answer.is_absence) and called.refusals < 2):
            has_moved = before.seen.layout_epoch != after.seen.layout_epoch
            again = TryAgain(f"refused: {answer.reason}", after.seen, at_once=answer.is_conflict and has_moved)
            return again, called
        return DecisionEnded("rejected", after.seen, answer.reason), called
    if isinstance(answer, NoAnswer):
        return TryAgain(answer.reason, after.seen, slowly=answer.denied), unsure
    return TryAgain("the call was accepted, but does not show yet", after.seen), unsure


def observe_once(
    decision: Decision, progress: AttemptProgress, actor: Actor[Any, Any]
) -> tuple[Result, AttemptProgress]:
    """Look and judge like `try_once`, and report what would be done."""
    now = _look(actor, decision, may_have_called=progress.open_end)
    if isinstance(now, NoAnswer):
        return TryAgain(now.reason, slowly=now.denied, is_outage=now.is_outage), progress
    progress = _counted(progress, now, may_have_called=False)
    if isinstance(now.verdict, StillNeeded):
        return DecisionEnded("observed", now.seen, would=str(decision)), progress
    if isinstance(now.verdict, Applied):
        # Begun by an executor in mode act: record the real end, not a hypothetical one.
        return _settled(now, progress, progress.open_end), progress
    if isinstance(now.verdict, Gone) and progress.absences < ABSENCES:
        return TryAgain(now.verdict.why, now.seen, confirms=True), progress
    return DecisionEnded("observed", now.seen, now.verdict.why, would="nothing: superseded"), progress


@dataclass(frozen=True)
class _Look:
    verdict: Verdict
    seen: Observation
    live: Any


def _look(actor: Actor[Any, Any], decision: Decision, may_have_called: bool) -> _Look | NoAnswer:
    live = actor.look(decision)
    if isinstance(live, NoAnswer):
        return live
    return _Look(actor.judge(decision, live, may_have_called), actor.describe(decision, live), live)


def _counted(progress: AttemptProgress, look: _Look, may_have_called: bool) -> AttemptProgress:
    """Return the state with absences updated by this look."""
    return replace(progress, absences=progress.absences + 1 if _is_absence(look, may_have_called) else 0)


def _is_absence(look: _Look, may_have_called: bool) -> bool:
    """Return whether the look may come from a stale replica."""
    return isinstance(look.verdict, Gone) or (may_have_called and isinstance(look.verdict, Superseded))


def _settled(look: _Look, progress: AttemptProgress, may_have_called: bool, answer: Answer | None = None) -> Result:
    """Return the end of a decision that needs no call, as far as that is certain."""
    verdict = look.verdict
    if isinstance(verdict, Applied):
        return DecisionEnded("applied", look.seen)
    assert not isinstance(verdict, StillNeeded)
    why = _joined(answer, verdict.why)
    if _is_absence(look, may_have_called) and progress.absences < ABSENCES:
        return TryAgain(why, look.seen, confirms=True)
    return DecisionEnded("superseded", look.seen, why)


def _joined(answer: Answer | None, text: str) -> str:
    return f"{text} (the call: {answer.reason})" if isinstance(answer, (CallRefused, NoAnswer)) else text


@dataclass
class DecisionWork:
    """One open decision; only the loop's thread changes it."""

    decision: Decision | Malformed
    decided_at: datetime
    """By the job's clock."""
    begun_at: datetime | None = None
    """Time of its first intent (in mode observe: of its first look)."""
    standing: AttemptProgress = field(default_factory=AttemptProgress)
    failures: int = 0
    """Inconclusive tries of this process."""
    conflicts: int = 0
    """Tries of this process that met a subject which had just changed."""
    only_looks: bool = False
    """A brake held the decision when its newest try began, so the try makes no call."""
    held_since: datetime | None = None
    """Instant since which a brake has held the decision after its intent; it was looked at since."""

    baseless: str | None = None
    """Why it must not be called for: an earlier decision, on which it rests, has expired."""

    @property
    def may_have_called(self) -> bool:
        """Return whether a call may have been sent, as far as finished tries tell."""
        return self.standing.open_end or self.standing.calls > 0

    def lose_basis(self, earlier: "DecisionWork") -> None:
        """Note that `earlier` has expired: no call must be made for this decision if it rests on it."""
        if self.may_have_called or earlier.decided_at >= self.decided_at:
            return
        if isinstance(self.decision, Malformed) or isinstance(earlier.decision, Malformed):
            return
        if self.decision.rests_on(earlier.decision):
            self.baseless = f"{EXPIRED}it rests on {earlier.decision}, which has expired; decided again"

    @property
    def subject(self) -> tuple[str, str]:
        """Family and subject."""
        return self.decision.family, self.decision.subject
