"""What the job's configuration gives every bucket; travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine, the same for every bucket."""

    profile: str
    cluster_policy: str | None
    """The configured cluster policy as JSON."""
    change_threshold: float
    """Relative move of a rate that is significant, as a fraction."""
    tick_ms: int
    """Time between two ticks, milliseconds."""
