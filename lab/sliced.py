"""The demand of the local run per slice of the key space, for a simulation of it.

Stage: beside `lab.samples`, which adds the same demand up under segments.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lab.demand import demands
from ledger.simulate.demand import SLICES, STEP_MS, Consumers, Sliced, below_of
from schemas.settings import TrafficSettings

_WIDTH = 0x10000 // SLICES


class LabDemand:
    """See `ledger.simulate.demand.Demand`."""

    def __init__(self, settings: TrafficSettings, hours: float, began_at: int, step_ms: int = STEP_MS) -> None:
        self._demands = demands(settings)
        self.topics = [one.topic for one in self._demands]
        self.initial = [one.initial_segments for one in self._demands]
        self.began_at, self.step_ms = began_at, step_ms
        self.steps = max(1, round(hours * 3_600_000 / step_ms))
        self._starts = np.arange(SLICES) * _WIDTH
        self._told: dict[tuple[int, str], int] = {}

    def advance(self, step: int) -> Sliced:
        """See `Demand`."""
        at = (self.began_at + step * self.step_ms) / 1000
        found = [one.rates(at, self._starts, self._starts + _WIDTH - 1) for one in self._demands]
        return Sliced(below_of(np.maximum(np.stack(found), 0.0)))

    def consumers(self, step: int) -> Iterable[Consumers]:
        """See `Demand`."""
        at = (self.began_at + step * self.step_ms) / 1000
        for place, one in enumerate(self._demands):
            counts = one.consumers(at)
            for subscription in one.subscriptions:
                key = place, subscription.name
                if self._told.get(key) != counts[subscription.name]:
                    self._told[key] = counts[subscription.name]
                    yield Consumers(place, subscription.name, subscription.type, counts[subscription.name])
