"""Pure: which brake holds a decision at an instant, if any; all but the rate, which `waiting` keeps count of.

In the order in which people have to deal with them: a stop, a pause, a maintenance window, a missing approval. A
decision that has waited for too long is over: the load that it was decided on may be gone, so the job decides again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from executor.brakes.windows import may_act, next_change
from lake.brakes import ALL, Acts
from schemas.messages import EXPIRED
from schemas.settings import ExecutorSettings

Brake = Literal["stop", "pause", "window", "approval", "rate"]
BRAKES: tuple[Brake, ...] = get_args(Brake)


@dataclass(frozen=True)
class Candidate:
    """A decision, as brakes know it."""

    decision_id: str
    family: str
    subject: str
    namespace: str | None
    """`tenant/namespace`; None: its subject is in none."""
    decided_at: datetime
    has_begun: bool = False
    """Its intent is on record: a rejection comes too late, and it does not expire, for it may have been applied."""


@dataclass(frozen=True)
class Held:
    """The decision waits."""

    brake: Brake
    why: str
    until: datetime | None
    """When the brake could end by time alone."""


@dataclass(frozen=True)
class Over:
    """The decision is not begun any more: a person has rejected it, or it has expired."""

    status: Literal["rejected", "superseded"]
    why: str


def held_by(candidate: Candidate, acts: Acts, settings: ExecutorSettings, now: datetime) -> Held | Over | None:
    """What holds a decision at `now`; None: nothing but, possibly, the rate."""
    held = _held_by(candidate, acts, settings, now)
    if candidate.has_begun:
        return held
    rejection = acts.rejections.get(candidate.decision_id)
    if rejection is not None:
        return Over("rejected", f"rejected {rejection}")
    limit = settings.begin_max_age_seconds if held is None else settings.waiting_max_age_seconds
    return expired(candidate.decided_at, now, limit) or held


def expired(decided_at: datetime, now: datetime, max_age_seconds: float) -> Over | None:
    """Tell a decision that is too old to be begun. One from as far ahead is not trusted either: the clocks of job and
    executor differ, so its age is not known."""
    age = (now - decided_at).total_seconds()
    if abs(age) <= max_age_seconds:
        return None
    when = f"{age:.0f} s ago" if age > 0 else f"{-age:.0f} s ahead of the executor's clock"
    return Over(
        "superseded",
        f"{EXPIRED}decided {when}, which is more than {max_age_seconds:g} s; decided again at the next evaluation",
    )


def expires_at(candidate: Candidate, settings: ExecutorSettings) -> datetime:
    """When a decision that is held expires."""
    return candidate.decided_at + timedelta(seconds=settings.waiting_max_age_seconds)


def _held_by(candidate: Candidate, acts: Acts, settings: ExecutorSettings, now: datetime) -> Held | None:
    if acts.stop is not None:
        return Held("stop", f"stopped {acts.stop}; go on with: anabranch executor resume all", None)
    pause = acts.pause_of([candidate.subject, *filter(None, [candidate.namespace]), ALL], now)
    if pause is not None:
        what = "everything" if pause.subject == ALL else pause.subject
        return Held("pause", f"{what} is paused {pause}", pause.until)
    windows = settings.brakes.windows
    if not may_act(windows, now):
        return Held("window", "outside of the times for acting, [executor.brakes] windows", next_change(windows, now))
    if settings.mode == "approve" and candidate.decision_id not in acts.approvals:
        return Held("approval", f"needs: anabranch approve {candidate.decision_id} --reason …", None)
    return None
