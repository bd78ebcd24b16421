"""Settings that the job sends to every worker, and the batch it has to repeat."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine, the same for every bucket."""

    change_threshold: float
    """Relative change of a rate, as a fraction, beyond which it is significant."""
    tick_ms: int
    """Time between two ticks, milliseconds."""
    bundles: bool = False
    """True if the family `bundles` runs."""


@dataclass(frozen=True)
class UnfinishedBatch:
    """A batch that was begun but not completed, and the settings with which it is repeated."""

    now: int
    """The batch's time, milliseconds, which identifies it."""
    settings: EngineSettings
