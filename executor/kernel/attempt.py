"""One try at one decision: look at its subject, judge, call if that is due, look again and judge by what is there.

Stage: in a worker thread of `loop`, which has made the intent durable before. Keeps nothing: what is known of earlier
tries comes in as `Standing` and goes out changed. The response of a call is never proof of its effect (design
"What must always hold", 2): a refusal counts only when a look after it shows no effect. Nor does a decision end because
its subject was not found once: the server may not have heard of it yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from executor.kernel.family import (
    Act,
    Actor,
    Answer,
    Applied,
    CallRefused,
    Decision,
    Gone,
    NoAnswer,
    Seen,
    Superseded,
    Verdict,
)
from schemas.messages import OutcomeStatus


@dataclass(frozen=True)
class Standing:
    """What is known of earlier tries at a decision."""

    calls: int = 0
    """Calls that went out, over all processes as far as is on record."""
    open_end: bool = False
    """A call may have gone out whose end we do not know, or that was accepted and does not show yet."""
    refusals: int = 0
    """Refused calls of this process."""
    absences: int = 0
    """Looks in a row of this process that did not find the subject, or not the effect that a call may have had."""


ABSENCES = 2
"""So many looks in a row must not find a subject, with a delay between them, before it is gone; or no effect of a call
on a subject that has changed, before somebody else has changed it: a copy that lags shows the one without the other."""


@dataclass(frozen=True)
class Ended:
    """The decision has come to its end."""

    status: OutcomeStatus
    seen: Seen | None
    """The last look that succeeded in this try; None: there was none."""
    error: str | None = None
    would: str | None = None
    """In mode observe: what acting would have done."""


@dataclass(frozen=True)
class TryAgain:
    """Nothing is settled: look again after a delay."""

    reason: str
    seen: Seen | None = None
    slowly: bool = False
    confirms: bool = False
    """One more look, after a delay, confirms or corrects what this one has shown: no time is too late for that."""
    held: bool = False
    """Nothing was tried but a look: the call may not be made now."""
    at_once: bool = False
    """The call met a subject that had just changed: the next try needs no delay, and this one is no failure."""


Result = Ended | TryAgain


def try_once(
    decision: Decision, standing: Standing, actor: Actor[Any, Any], may_call: Callable[[], bool],
    holds_lease: Callable[[], bool],
) -> tuple[Result, Standing]:  # fmt: skip
    """Advances one decision by at most one call. `may_call` is asked right before it; without a call, a decision may
    still turn out to be settled."""
    may_have_called = standing.open_end or standing.calls > 0
    before = _look(actor, decision, may_have_called)
    if isinstance(before, NoAnswer):
        return TryAgain(before.reason, slowly=before.denied), standing
    standing = _counted(standing, before, may_have_called)
    if not isinstance(before.verdict, Act):
        return _settled(before, standing, may_have_called), standing
    if not may_call():
        return TryAgain("the call may not be made now", before.seen, held=True), standing
    if not holds_lease():
        return TryAgain("the lease is not renewed", before.seen), standing

    answer = actor.call(decision, before.live, holds_lease)
    # A conflict says nothing about the call itself, and is retried at once: it confirms no other refusal.
    refused = isinstance(answer, CallRefused) and not answer.is_conflict
    called = replace(standing, calls=standing.calls + 1, refusals=standing.refusals + refused)
    unsure = replace(called, open_end=standing.open_end or not isinstance(answer, CallRefused))
    after = _look(actor, decision, may_have_called=True)
    if isinstance(after, NoAnswer):
        return TryAgain(_joined(answer, after.reason), slowly=after.denied), unsure
    called, unsure = _counted(called, after, unsure.open_end), _counted(unsure, after, unsure.open_end)
    if not isinstance(after.verdict, Act):
        result = _settled(after, called, unsure.open_end, answer)
        return result, called if isinstance(result, Ended) else unsure
    if isinstance(answer, CallRefused):
        # An earlier call may show only now, if the look was answered by a copy that lags; and so may the subject, if
        # the call was. One more look, after a delay.
        if answer.is_conflict or ((standing.open_end or answer.is_absence) and called.refusals < 2):
            has_moved = before.seen.layout_epoch != after.seen.layout_epoch
            again = TryAgain(f"refused: {answer.reason}", after.seen, at_once=answer.is_conflict and has_moved)
            return again, called
        return Ended("rejected", after.seen, answer.reason), called
    if isinstance(answer, NoAnswer):
        return TryAgain(answer.reason, after.seen, slowly=answer.denied), unsure
    return TryAgain("the call was accepted, but does not show yet", after.seen), unsure


def observe_once(decision: Decision, standing: Standing, actor: Actor[Any, Any]) -> tuple[Result, Standing]:
    """Looks and judges as `try_once` does, and says what would be done."""
    now = _look(actor, decision, may_have_called=standing.open_end)
    if isinstance(now, NoAnswer):
        return TryAgain(now.reason, slowly=now.denied), standing
    standing = _counted(standing, now, may_have_called=False)
    if isinstance(now.verdict, Act):
        return Ended("observed", now.seen, would=str(decision)), standing
    if isinstance(now.verdict, Applied):
        # Begun by an executor in mode act: its real end counts more than a hypothetical one.
        return _settled(now, standing, standing.open_end), standing
    if isinstance(now.verdict, Gone) and standing.absences < ABSENCES:
        return TryAgain(now.verdict.why, now.seen, confirms=True), standing
    return Ended("observed", now.seen, now.verdict.why, would="nothing: superseded"), standing


@dataclass(frozen=True)
class _Look:
    verdict: Verdict
    seen: Seen
    live: Any


def _look(actor: Actor[Any, Any], decision: Decision, may_have_called: bool) -> _Look | NoAnswer:
    live = actor.look(decision)
    if isinstance(live, NoAnswer):
        return live
    return _Look(actor.judge(decision, live, may_have_called), actor.describe(decision, live), live)


def _counted(standing: Standing, look: _Look, may_have_called: bool) -> Standing:
    """With the absences up to this look."""
    return replace(standing, absences=standing.absences + 1 if _is_absence(look, may_have_called) else 0)


def _is_absence(look: _Look, may_have_called: bool) -> bool:
    """Whether a copy that lags may show this although it is not so."""
    return isinstance(look.verdict, Gone) or (may_have_called and isinstance(look.verdict, Superseded))


def _settled(look: _Look, standing: Standing, may_have_called: bool, answer: Answer | None = None) -> Result:
    """The end of a decision on which nothing is left to do, as far as that is certain."""
    verdict = look.verdict
    if isinstance(verdict, Applied):
        return Ended("applied", look.seen)
    assert not isinstance(verdict, Act)
    why = _joined(answer, verdict.why)
    if _is_absence(look, may_have_called) and standing.absences < ABSENCES:
        return TryAgain(why, look.seen, confirms=True)
    return Ended("superseded", look.seen, why)


def _joined(answer: Answer | None, text: str) -> str:
    return f"{text} (the call: {answer.reason})" if isinstance(answer, (CallRefused, NoAnswer)) else text
