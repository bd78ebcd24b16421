"""The demand of the local run per slice of the key space, for a simulation of it."""

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

    def __init__(
        self, settings: TrafficSettings, hours: float, began_at: int, step_ms: int = STEP_MS, origin: int | None = None
    ) -> None:
        """The demand from `began_at` on; one that counts from its start does so from `origin`, else from `began_at`."""
        start = began_at if origin is None else origin
        self._demands = demands(settings, start / 1000 if settings.counts_from_start else 0.0)
        self.topics = [demand.topic for demand in self._demands]
        self.began_at, self.step_ms = began_at, step_ms
        self.steps = max(1, round(hours * 3_600_000 / step_ms))

    def layouts(self, indexes: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [SegmentLayout.create(self._demands[index].initial_segments, self.began_at) for index in indexes]

    def windows(self, indexes: range) -> Iterator[Window]:
        """See `Source`."""
        last_counts: dict[tuple[int, str], int] = {}
        length = max(1, _WINDOW_MS // self.step_ms) * self.step_ms
        until = self.began_at + self.steps * self.step_ms
        for begin in range(self.began_at, until, length):
            end = min(begin + length, until)
            yield Window(begin, end, [self._timeline(index, begin, end, last_counts) for index in indexes])

    def _timeline(self, index: int, begin: int, end: int, last_counts: dict[tuple[int, str], int]) -> Timeline:
        demand, edges, instants = self._demands[index], even_slices(SLICES), np.arange(begin, end, self.step_ms)
        rates = [demand.rates(instant / 1000, edges[:-1], edges[1:] - 1) for instant in instants.tolist()]
        consumers = []
        for instant in instants.tolist():
            counts = demand.consumers(instant / 1000)
            for subscription in demand.subscriptions:
                key, count = (index, subscription.name), counts[subscription.name]
                if last_counts.get(key) != count:
                    last_counts[key] = count
                    consumers.append(ConsumersFrom(instant, subscription.name, subscription.type, count))
        return Timeline(
            edges, np.maximum(np.stack(rates), 0.0), instants, np.arange(len(instants)), consumers=consumers
        )
