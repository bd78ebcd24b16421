"""Recorded demand as a `Source` of simulations: topics with the same lifetime.

Stage: under `running`, over `demand`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anabranch.simulation.backtest.demand import EstimatedDemand
from anabranch.simulation.topics.timeline import ConsumersFrom, Timeline, Window
from decisions.topic.layout import SegmentLayout

WINDOW_MS = 86_400_000
"""Length of the demand that is expanded at a time."""


@dataclass(frozen=True)
class RecordedTopic:
    """Topic with its recorded demand."""

    name: str
    layout: SegmentLayout
    """At the beginning."""
    demand: EstimatedDemand
    consumers: Sequence[ConsumersFrom]
    """Ascending by instant; none is before the beginning."""


class RecordedSource:
    """See `anabranch.simulation.topics.timeline.Source`."""

    def __init__(self, recorded: Sequence[RecordedTopic], counted_from: int, phase_ms: int, step_ms: int) -> None:
        """Build the source of one or more topics with the same lifetime.

        A window begins at `counted_from`. All instants are moved back by `phase_ms`, so that the job's ticks are at
        whole minutes, as those of a simulation are.
        """
        self._recorded, self._phase, self.step_ms = recorded, phase_ms, step_ms
        self.topics: Sequence[str] = [topic.name for topic in recorded]
        self.counted_from = counted_from - phase_ms
        self.began_at = recorded[0].demand.began_at - phase_ms
        # A part of a step counts as one: what a topic has after `counted_from` may be all of it.
        self.steps = -(-(recorded[0].demand.ends_at - phase_ms - self.began_at) // step_ms)

    def layouts(self, indices: range) -> list[SegmentLayout]:
        """See `Source`."""
        return [self._recorded[index].layout for index in indices]

    def windows(self, indices: range) -> Iterator[Window]:
        """See `Source`."""
        whole = self.began_at + self.steps * self.step_ms
        width = WINDOW_MS // self.step_ms * self.step_ms
        begins = sorted({*range(self.began_at, whole, width), self.counted_from})
        for begin, end in pairwise([*begins, whole]):
            yield Window(begin, end, [self._timeline(self._recorded[index], begin, end) for index in indices])

    def _timeline(self, recorded: RecordedTopic, begin: int, end: int) -> Timeline:
        instants, rates = recorded.demand.between(begin + self._phase, end + self._phase, self.step_ms)
        changes = [change._replace(at=change.at - self._phase) for change in recorded.consumers]
        mine = [change for change in changes if begin <= change.at < end]
        return Timeline(recorded.demand.edges, rates, instants - self._phase, np.arange(len(instants)), consumers=mine)
