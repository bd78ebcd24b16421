"""What came of a policy: counted step by step, by topic and in all.

Stage: filled by `loop`, printed by the command line and `page`. All of it is what the demand and the layouts show, not
what the engine was told of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decisions.autoscale.policy import Policy
from decisions.autoscale.snapshot import MANAGED
from decisions.topic.layout import SegmentLayout
from ledger.simulate.demand import Consumers, Demand, Floats, Ints

REVERSAL_MS = 1_800_000
"""What is taken back within this time counts as a reversal."""
SERIES_STEPS = 500
"""Points of a series over time."""


class Score:
    """The counts of one policy; arrays are by topic."""

    def __init__(self, demand: Demand, yardstick: Policy) -> None:
        count = len(demand.topics)
        self.topics = list(demand.topics)
        self.yardstick = yardstick
        """What a segment can carry: its split thresholds."""
        self._step_ms, self._steps, self._began_at = demand.step_ms, demand.steps, demand.began_at
        self.splits, self.merges, self.reversals, self.sealed = (np.zeros(count, np.int64) for _ in range(4))
        self.segment_ms, self.over_ms, self.waiting_ms = (np.zeros(count, np.int64) for _ in range(3))
        self.most_segments = np.array(demand.initial, np.int64)
        self._required = np.zeros(count, np.int64)
        self._consumers: dict[int, dict[str, tuple[str, int]]] = {}
        self._made: list[dict[tuple[int, ...], tuple[str, int]]] = [{} for _ in range(count)]
        """By topic: the segments that an action made, which one and when."""
        self._every = max(1, self._steps // SERIES_STEPS)
        self.series: list[tuple[int, int, int]] = []
        """Now and then: the instant, segments in all, topics that are over a threshold."""
        self._counted = 0

    def set_consumers(self, one: Consumers) -> None:
        """What has changed of a subscription."""
        known = self._consumers.setdefault(one.topic, {})
        known[one.subscription] = one.kind, one.sessions
        self._required[one.topic] = max((count for kind, count in known.values() if kind in MANAGED), default=0)

    def acted(self, topic: int, action: str, segments: Sequence[int], after: SegmentLayout, now: int) -> None:
        """An action was applied."""
        (self.splits if action == "split" else self.merges)[topic] += 1
        self.sealed[topic] += len(segments)
        made = self._made[topic]
        before = made.pop(tuple(sorted(segments)), None)
        if before is not None and before[0] != action and now - before[1] <= REVERSAL_MS:
            self.reversals[topic] += 1
        children = tuple(
            sorted(one.segment_id for one in after.segments.values() if one.created_at_epoch == after.epoch)
        )
        made[children] = action, now

    def add(self, topic: Ints, rates: Floats, now: int) -> None:
        """A step, with the rates (m x 4) of every active segment, of the topic at that place."""
        count = len(self.topics)
        active = np.bincount(topic, minlength=count)
        is_over = (rates > np.array(self.yardstick.split_thresholds)).any(axis=1)
        over = np.bincount(topic[is_over], minlength=count) > 0
        self.segment_ms += active * self._step_ms
        self.over_ms += over * self._step_ms
        self.waiting_ms += np.maximum(self._required - active, 0) * self._step_ms
        np.maximum(self.most_segments, active, out=self.most_segments)
        if self._counted % self._every == 0:
            self.series.append((now, int(active.sum()), int(over.sum())))
        self._counted += 1

    @property
    def topic_hours(self) -> float:
        """Simulated."""
        return len(self.topics) * self._steps * self._step_ms / 3_600_000

    def to_json(self) -> dict[str, Any]:
        """In all."""
        return {
            "splits": int(self.splits.sum()),
            "merges": int(self.merges.sum()),
            "reversals": int(self.reversals.sum()),
            "sealedSegments": int(self.sealed.sum()),
            "segmentHours": round(float(self.segment_ms.sum()) / 3_600_000, 3),
            "minutesOverThreshold": round(float(self.over_ms.sum()) / 60_000, 3),
            "consumerMinutesWaiting": round(float(self.waiting_ms.sum()) / 60_000, 3),
            "mostSegments": int(self.most_segments.max()),
            "topicHours": round(self.topic_hours, 3),
        }

    def of_topics(self) -> list[dict[str, Any]]:
        """By topic, in their order."""
        return [
            {
                "topic": name,
                "splits": int(self.splits[place]),
                "merges": int(self.merges[place]),
                "reversals": int(self.reversals[place]),
                "segmentHours": round(float(self.segment_ms[place]) / 3_600_000, 3),
                "minutesOverThreshold": round(float(self.over_ms[place]) / 60_000, 3),
                "consumerMinutesWaiting": round(float(self.waiting_ms[place]) / 60_000, 3),
                "mostSegments": int(self.most_segments[place]),
            }
            for place, name in enumerate(self.topics)
        ]
