"""One try at one decision: look at the layout, judge, call if that is due, look again and judge by what is there.

Stage: in a worker thread of `loop`, which has made the intent durable before. Holds nothing: what is known of earlier
tries comes in as `Standing` and goes out changed. The response of a call is never proof of its effect (DESIGN section
5, rule 2): a refusal counts only when a look after it shows no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from decisions.topic.layout import SegmentLayout
from executor.admin import Accepted, NoAnswer, Refused, TopicGone
from executor.decision import Decision
from executor.judge import Act, Applied, Superseded, judge
from schemas.messages import OutcomeStatus


@dataclass(frozen=True)
class Standing:
    """What is known of earlier tries at a decision."""

    calls: int = 0
    """Calls that went out, over all processes as far as is on record."""
    open_end: bool = False
    """A call may have gone out whose end we do not know, or that was accepted and does not show in the layout yet."""
    refusals: int = 0
    """Refused calls of this process."""


@dataclass(frozen=True)
class Ended:
    """The decision has come to its end."""

    status: OutcomeStatus
    layout: SegmentLayout | None
    """The last layout that was seen; None when the topic is gone or nothing was seen."""
    error: str | None = None
    would: str | None = None
    """In mode observe: what acting would have done."""


@dataclass(frozen=True)
class TryAgain:
    """Nothing is settled: look again after a pause."""

    reason: str
    layout: SegmentLayout | None = None
    slowly: bool = False


Result = Ended | TryAgain
Answer = Accepted | Refused | NoAnswer


class Cluster(Protocol):
    """What is asked of an admin interface."""

    def layout(self, topic: str) -> SegmentLayout | TopicGone | NoAnswer:
        """The layout of a topic as it is now."""

    def apply(self, decision: Decision) -> Answer:
        """The one call that a decision asks for."""


def try_once(
    decision: Decision, standing: Standing, cluster: Cluster, may_call: Callable[[], bool]
) -> tuple[Result, Standing]:
    """Brings one decision forward by at most one call. `may_call` is asked right before it."""
    seen = _look(cluster, decision)
    if isinstance(seen, NoAnswer):
        return TryAgain(seen.reason, slowly=seen.denied), standing
    before = judge(decision, seen.layout, may_have_called=standing.open_end or standing.calls > 0)
    if not isinstance(before, Act):
        return _settled(before, seen.layout), standing
    if not may_call():
        return TryAgain("the executor stops", seen.layout), standing

    answer = cluster.apply(decision)
    called = replace(standing, calls=standing.calls + 1, refusals=standing.refusals + isinstance(answer, Refused))
    unsure = replace(called, open_end=standing.open_end or not isinstance(answer, Refused))
    seen = _look(cluster, decision)
    if isinstance(seen, NoAnswer):
        return TryAgain(_joined(answer, seen.reason), slowly=seen.denied), unsure
    after = judge(decision, seen.layout, may_have_called=True)
    if not isinstance(after, Act):
        return _settled(after, seen.layout, answer), called
    if isinstance(answer, Refused):
        # An earlier call may show only now, if the layout came from a copy that lags: one more look, after a pause.
        if standing.open_end and called.refusals < 2:
            return TryAgain(f"refused: {answer.reason}", seen.layout), called
        return Ended("rejected", seen.layout, answer.reason), called
    if isinstance(answer, NoAnswer):
        return TryAgain(answer.reason, seen.layout, slowly=answer.denied), unsure
    return TryAgain("the call was accepted, but the layout does not show it yet", seen.layout), unsure


def observe_once(decision: Decision, standing: Standing, cluster: Cluster) -> tuple[Result, Standing]:
    """Looks and judges as `try_once` does, and says what would be done."""
    seen = _look(cluster, decision)
    if isinstance(seen, NoAnswer):
        return TryAgain(seen.reason, slowly=seen.denied), standing
    verdict = judge(decision, seen.layout, may_have_called=standing.open_end)
    if isinstance(verdict, Act):
        return Ended("observed", seen.layout, would=str(decision)), standing
    if isinstance(verdict, Applied):
        # Begun by an executor that acted: what is true is worth more than what would be.
        return _settled(verdict, seen.layout), standing
    return Ended("observed", seen.layout, verdict.why, would="nothing: superseded"), standing


@dataclass(frozen=True)
class _Seen:
    layout: SegmentLayout | None


def _look(cluster: Cluster, decision: Decision) -> _Seen | NoAnswer:
    found = cluster.layout(decision.subject)
    if isinstance(found, NoAnswer):
        return found
    return _Seen(None if isinstance(found, TopicGone) else found)


def _settled(verdict: Applied | Superseded, layout: SegmentLayout | None, answer: Answer | None = None) -> Ended:
    if isinstance(verdict, Applied):
        return Ended("applied", layout)
    return Ended("superseded", layout, _joined(answer, verdict.why))


def _joined(answer: Answer | None, text: str) -> str:
    return f"{text} (the call: {answer.reason})" if isinstance(answer, (Refused, NoAnswer)) else text
