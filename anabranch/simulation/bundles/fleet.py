"""A fleet: brokers that come and go, bundles with demand for each minute.

Units: messages and bytes a second; usage as a fraction; time in minutes since the start.
"""

from __future__ import annotations

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
    """In and out, that fill its CPU."""
    network: float = 125_000_000.0
    """Bytes a second that fill its network card, each way."""
    idle: float = 0.02
    """CPU that it uses with nothing to do."""
    joins: int = 0
    dies: int | None = None
    away: tuple[tuple[int, int], ...] = ()
    """First minute of each time that it was gone, and the first when it was back."""

    def lives(self, minute: int) -> bool:
        """Return True if the broker is present at a minute."""
        is_away = any(begin <= minute < end for begin, end in self.away)
        return self.joins <= minute and (self.dies is None or minute < self.dies) and not is_away


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that happens to a cluster, whatever its balancer does."""

    brokers: tuple[Broker, ...]
    bundles: tuple[str, ...]
    owners: tuple[str, ...]
    """Of each bundle, at the start."""
    messages: Floats
    """In; a row for each minute, a column for each bundle."""
    sizes: Floats
    """Bytes a message, by bundle."""
    fan_out: Floats
    """Messages out for one in, by bundle."""
    connections: Floats = field(default_factory=lambda: np.zeros(0))
    """By bundle: who has to reconnect when it moves. Empty: ten each."""
    recorded: NDArray[np.float32] | None = None
    """By minute and bundle, four rates: messages in and out, bytes in and out. In the place of `messages`, `sizes` and
    `fan_out`, which are not constant on record."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Further inputs of the balancer, as fields of a snapshot: isolation policies, groups, domains."""
    noise: float = 0.0
    """Standard deviation of a CPU reading, as a fraction."""
    seed: int = 1

    @property
    def minutes(self) -> int:
        """Return the duration in minutes."""
        return len(self.messages if self.recorded is None else self.recorded)
