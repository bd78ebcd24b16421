"""The brake that holds a decision at an instant, if any. Pure; the rate limit is counted in `waiting`.

Brakes apply in the order in which people have to deal with them: stop, pause, maintenance window, missing approval. A
decision that has waited for too long expires: the load that it was decided on may be gone, so the job decides again.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from anabranch.safeguards.windows import may_act, next_change
from lake.brakes import ALL, Acts
from schemas.kafka.messages import EXPIRED
from schemas.settings.processes import ExecutorSettings

Brake = Literal["stop", "pause", "window", "approval", "rate"]
BRAKES: tuple[Brake, ...] = get_args(Brake)


@dataclass(frozen=True)
class PendingDecision:
    """A decision with the fields that brakes need."""

    decision_id: str
    family: str
    subject: str
    namespace: str | None
    """`tenant/namespace`; None: the subject has no namespace."""
    decided_at: datetime
    has_begun: bool = False
    """Its intent is on record. It may have been applied: the executor alone knows if it may end."""


@dataclass(frozen=True)
class HeldBySafeguard:
    """A brake holds the decision."""

    brake: Brake
    why: str
    until: datetime | None
    """Instant at which the brake could end by time alone."""


@dataclass(frozen=True)
class Over:
    """The decision must not begin any more: a person rejected it, or it expired."""

    status: Literal["rejected", "superseded"]
    why: str


def held_by(
    candidate: PendingDecision, acts: Acts, settings: ExecutorSettings, now: datetime
) -> HeldBySafeguard | Over | None:
    """Return what holds a decision at `now`; None: nothing except, possibly, the rate limit."""
    held = _held_by(candidate, acts, settings, now)
    if candidate.has_begun:
        return held
    if (rejection := acts.rejections.get(candidate.decision_id)) is not None:
        return Over("rejected", f"rejected {rejection}")
    limit = settings.begin_max_age_seconds if held is None else settings.waiting_max_age_seconds
    return expired(candidate.decided_at, now, limit) or held


def expired(decided_at: datetime, now: datetime, max_age_seconds: float) -> Over | None:
    """Return the end of a decision that is too old to begin, or None.

    A decision equally far in the future is not trusted either: the clocks of job and executor differ, so its age is
    unknown.
    """
    age = (now - decided_at).total_seconds()
    if abs(age) <= max_age_seconds:
        return None
    when = f"{age:.0f} s ago" if age > 0 else f"{-age:.0f} s ahead of the executor's clock"
    return Over(
        "superseded",
        f"{EXPIRED}decided {when}, which is more than {max_age_seconds:g} s; decided again at the next evaluation",
    )


def expires_at(candidate: PendingDecision, settings: ExecutorSettings) -> datetime:
    """Return when a held decision expires."""
    return candidate.decided_at + timedelta(seconds=settings.waiting_max_age_seconds)


def _held_by(
    candidate: PendingDecision, acts: Acts, settings: ExecutorSettings, now: datetime
) -> HeldBySafeguard | None:
    if acts.stop is not None:
        return HeldBySafeguard("stop", f"stopped {acts.stop}; go on with: anabranch decisions resume all", None)
    pause = acts.pause_of([candidate.subject, *filter(None, [candidate.namespace]), ALL], now)
    if pause is not None:
        scope = "everything" if pause.subject == ALL else pause.subject
        return HeldBySafeguard("pause", f"{scope} is paused {pause}", pause.until)
    windows = settings.brakes.windows
    if not may_act(windows, now):
        return HeldBySafeguard(
            "window", "outside of the times for acting, [executor.brakes] windows", next_change(windows, now)
        )
    if settings.mode == "approve" and candidate.decision_id not in acts.approvals:
        return HeldBySafeguard(
            "approval", f"needs: anabranch decisions approve {candidate.decision_id} --reason …", None
        )
    return None
