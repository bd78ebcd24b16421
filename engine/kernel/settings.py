"""What the job's configuration gives every bucket; travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine, the same for every bucket."""

    change_threshold: float
    """Relative move of a rate that is significant, as a fraction."""
    tick_ms: int
    """Time between two ticks, milliseconds."""
    bundles: bool = False
    """Whether the family `bundles` runs."""


@dataclass(frozen=True)
class Repeated:
    """A batch that was begun and not ended, and the settings that it runs with again."""

    now: int
    """The batch's time, milliseconds: it tells the batch from all others."""
    settings: EngineSettings
