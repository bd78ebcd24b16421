"""The demand of the local run per slice of the key space, for a simulation of it.

Stage: beside `anabranch.local.samples`, which adds the same demand up under segments.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anabranch.local.demand import demands
from anabranch.simulation.topics.shapes import SLICES
from anabranch.simulation.topics.timeline import STEP_MS, ConsumersFrom, Timeline, Window, even_slices
from decisions.topic.layout import SegmentLayout
from schemas.settings.root import TrafficSettings

_WINDOW_MS = 3_600_000


class LabDemand:
    """See `anabranch.simulation.topics.timeline.Source`."""

    def __init__(self, settings: TrafficSettings, hours: float, began_at: int, step_ms: int = STEP_MS) -> None:
        self._demands = demands(settings, began_at / 1000 if settings.from_start else 0.0)
        self.topics = [one.topic for one in self._demands]
        self.began_at, self.step_ms = began_at, step_ms
        self.steps = max(1, round(hours * 3_600_000 / step_ms))

    def layouts(self, places: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [SegmentLayout.create(self._demands[place].initial_segments, self.began_at) for place in places]

    def windows(self, places: range) -> Iterator[Window]:
        """See `Source`."""
        told: dict[tuple[int, str], int] = {}
        length = max(1, _WINDOW_MS // self.step_ms) * self.step_ms
        until = self.began_at + self.steps * self.step_ms
        for begin in range(self.began_at, until, length):
            end = min(begin + length, until)
            yield Window(begin, end, [self._timeline(place, begin, end, told) for place in places])

    def _timeline(self, place: int, begin: int, end: int, told: dict[tuple[int, str], int]) -> Timeline:
        one, edges, at = self._demands[place], even_slices(SLICES), np.arange(begin, end, self.step_ms)
        rates = [one.rates(instant / 1000, edges[:-1], edges[1:] - 1) for instant in at.tolist()]
        consumers = []
        for instant in at.tolist():
            counts = one.consumers(instant / 1000)
            for subscription in one.subscriptions:
                key, count = (place, subscription.name), counts[subscription.name]
                if told.get(key) != count:
                    told[key] = count
                    consumers.append(ConsumersFrom(instant, subscription.name, subscription.type, count))
        return Timeline(edges, np.maximum(np.stack(rates), 0.0), at, np.arange(len(at)), consumers=consumers)
