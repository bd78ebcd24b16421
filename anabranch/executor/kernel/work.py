"""State of one open decision in this process.

Stage: `loop` owns it; `executor.brakes` hold it and `workers` try it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from anabranch.executor.kernel.attempt import AttemptProgress
from anabranch.executor.kernel.decision import Malformed
from anabranch.executor.kernel.family import Decision
from schemas.kafka.messages import EXPIRED


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
    """Why it must not begin: an earlier decision, on which it rests, has expired."""

    def lose_basis(self, earlier: DecisionWork) -> None:
        """Note that `earlier` has expired: this decision must not begin if it rests on it."""
        if self.begun_at is not None or earlier.decided_at >= self.decided_at:
            return
        if isinstance(self.decision, Malformed) or isinstance(earlier.decision, Malformed):
            return
        if self.decision.rests_on(earlier.decision):
            self.baseless = f"{EXPIRED}it rests on {earlier.decision}, which has expired; decided again"

    @property
    def subject(self) -> tuple[str, str]:
        """Family and subject."""
        return self.decision.family, self.decision.subject
