"""Simulated cluster: brokers that come and go, and bundles with a demand for each minute.

Units: messages and bytes a second; usage as a fraction; time in minutes since the start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Broker:
    """Capacity of a broker, and the minutes of its presence."""

    name: str
    messages: float = 100_000.0
    """Messages per second, in and out, that saturate its CPU."""
    network: float = 125_000_000.0
    """Bytes per second, each way, that saturate its network card."""
    idle: float = 0.02
    """CPU usage without load."""
    joins: int = 0
    dies: int | None = None
    away: tuple[tuple[int, int], ...] = ()
    """Absences: first minute, and first minute of presence after it."""

    def lives(self, minute: int) -> bool:
        """Return True if the broker is present at a minute."""
        is_away = any(begin <= minute < end for begin, end in self.away)
        return self.joins <= minute and (self.dies is None or minute < self.dies) and not is_away


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that happens to a cluster independently of its balancer."""

    brokers: tuple[Broker, ...]
    bundles: tuple[str, ...]
    owners: tuple[str, ...]
    """Owner of each bundle at the start."""
    messages: Floats
    """Messages in; a row per minute, a column per bundle."""
    sizes: Floats
    """Bytes per message, by bundle."""
    fan_out: Floats
    """Messages out per message in, by bundle."""
    connections: Floats = field(default_factory=lambda: np.zeros(0))
    """Connections that a move of the bundle breaks, by bundle. Empty: ten each."""
    recorded: NDArray[np.float32] | None = None
    """Four rates by minute and bundle: messages in and out, bytes in and out. Replaces `messages`, `sizes` and
    `fan_out`, which are not constant on record."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the balancer's snapshot: isolation policies, groups, domains."""
    noise: float = 0.0
    """Standard deviation of a CPU reading, as a fraction."""
    seed: int = 1

    @property
    def minutes(self) -> int:
        """Return the duration in minutes."""
        return len(self.messages if self.recorded is None else self.recorded)
