"""One open decision, and what this process knows of it.

Stage: what `loop` keeps of each decision; `executor.brakes` has it wait, `workers` have it tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from executor.kernel.attempt import Standing
from executor.kernel.decision import Malformed
from executor.kernel.family import Decision


@dataclass
class Work:
    """One open decision; only the loop's thread changes it."""

    decision: Decision | Malformed
    decided_at: datetime
    """By the job's clock."""
    begun_at: datetime | None = None
    """When its first intent was recorded (in mode observe: when it was first looked at)."""
    standing: Standing = field(default_factory=Standing)
    failures: int = 0
    """Tries of this process that settled nothing."""
    conflicts: int = 0
    """Tries of this process that met a subject which had just changed."""
    only_looks: bool = False
    """Of the newest try: a brake held the decision when it began."""
    held_since: datetime | None = None
    """A brake holds it since, although it has begun; it was looked at since then."""

    @property
    def subject(self) -> tuple[str, str]:
        """What it is about: family and subject."""
        return self.decision.family, self.decision.subject
