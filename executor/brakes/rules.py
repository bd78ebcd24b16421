"""Pure: which brake holds a decision at an instant, if any; all but the rate, which `waiting` keeps count of.

In the order in which people have to deal with them: a stop, a pause, a maintenance window, a missing approval.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from executor.brakes.windows import may_act, next_change
from lake.brakes import ALL, Acts
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
    has_begun: bool = False
    """Its intent is on record: a rejection comes too late."""


@dataclass(frozen=True)
class Held:
    """The decision waits."""

    brake: Brake
    why: str
    until: datetime | None
    """When the brake could end by time alone."""


@dataclass(frozen=True)
class Rejected:
    """A person has rejected the decision."""

    why: str


def held_by(candidate: Candidate, acts: Acts, settings: ExecutorSettings, now: datetime) -> Held | Rejected | None:
    """What holds a decision at `now`; None: nothing but, possibly, the rate."""
    rejection = acts.rejections.get(candidate.decision_id)
    if rejection is not None and not candidate.has_begun:
        return Rejected(f"rejected {rejection}")
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
