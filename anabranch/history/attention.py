"""Conditions of the fleet that need a person, in a sentence each, for `status` and the page. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from anabranch.history.words import span


class Attention(NamedTuple):
    """A condition that needs a person."""

    about: str
    """`job`, `executor`, `decision`, `approval` or `alert`."""
    sentence: str


@dataclass(frozen=True)
class Conditions:
    """State of the processes and of what they have to do."""

    has_run: bool
    """The job has committed a batch at some time."""
    silent_seconds: float | None
    """Since the job's last batch if it is late; None: it is not."""
    is_acted: bool
    """An executor acts."""
    stop: str | None
    """Why the executor has stopped itself; None: it has not."""
    stuck_seconds: float | None
    """Age of the oldest open decision if it is stuck; None: it is not."""
    approvals: int
    """Decisions that wait for approval."""
    firing: tuple[str, ...]
    """Names of the alerts that fire."""


def attention(conditions: Conditions) -> list[Attention]:
    """Return what needs a person; empty: nothing does."""
    reasons = []
    if not conditions.has_run:
        reasons.append(Attention("job", "the job has committed nothing yet"))
    elif conditions.silent_seconds is not None:
        reasons.append(Attention("job", f"the job has committed nothing for {span(conditions.silent_seconds)}"))
    if not conditions.is_acted:
        reasons.append(Attention("executor", "no executor acts"))
    if conditions.stop:
        reasons.append(Attention("executor", f"the executor has stopped itself: {conditions.stop}"))
    if conditions.stuck_seconds is not None:
        reasons.append(Attention("decision", f"a decision has been open for {span(conditions.stuck_seconds)}"))
    if count := conditions.approvals:
        reasons.append(Attention("approval", f"{count} decision{'s wait' if count > 1 else ' waits'} for approval"))
    if conditions.firing:
        count, names = len(conditions.firing), ", ".join(sorted(set(conditions.firing)))
        reasons.append(Attention("alert", f"{count} alert{'s fire' if count > 1 else ' fires'}: {names}"))
    return reasons
