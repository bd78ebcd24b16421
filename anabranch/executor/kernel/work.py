"""State of one open decision in this process.

Stage: `loop` owns it; `executor.brakes` hold it and `workers` try it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from anabranch.executor.kernel.attempt import AttemptProgress
from anabranch.executor.kernel.decision import Malformed
from anabranch.executor.kernel.family import Decision


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

    @property
    def subject(self) -> tuple[str, str]:
        """Family and subject."""
        return self.decision.family, self.decision.subject
