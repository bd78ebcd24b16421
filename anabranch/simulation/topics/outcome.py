"""Results of a policy: counts by topic, and actions. Columns, so that those of many topics add up.

Stage: filled by the kernel, printed by the command line and by its other callers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
REVERSAL_MS = 1_800_000
"""An action that is undone within this time counts as a reversal."""
SERIES_POINTS = 500
"""Of a series over time."""


class Actions(NamedTuple):
    """Actions in order of time; columns of the same length."""

    topic: Ints
    """Its place among the topics."""
    at: Ints
    """Instant of the decision, milliseconds since 1970; it is applied with the next step, or later (`run.simulate`)."""
    action: Codes
    """`decisions.autoscale.columns.SPLIT`, `MERGE` or `REBUCKET`; a rebucket is an action for each of its segments."""
    segment: Ints
    """The segment to split or rebucket, or the first of the two to merge."""
    other: Ints
    """The second of the two; -1 for a split; of a rebucket the number of entry buckets."""
    reason: Codes
    """Index into `decisions.autoscale.columns.REASONS`: which rate, `consumer-count` or `cold`."""
    is_applied: npt.NDArray[np.bool_]
    """False for a split of a single hash, which fails (profile `pip-483` tries it), and for one that comes too late."""
    is_reversal: npt.NDArray[np.bool_]
    """It takes back, within `REVERSAL_MS`, what made its segments."""

    def of(self, chosen: Ints) -> "Actions":
        """Return the actions at some indices."""
        columns: list[Any] = [column[chosen] for column in self]
        return Actions(*columns)

    @classmethod
    def none(cls) -> "Actions":
        """Return no actions."""
        empty, codes, flags = np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.bool_)
        return cls(empty, empty, codes, empty, empty, codes, flags, flags)


@dataclass
class Outcome:
    """Results of one policy; arrays are by topic, in the order of `topics`, times in milliseconds."""

    topics: Sequence[str]
    topic_ms: int
    """Simulated of each topic."""
    splits: Ints
    merges: Ints
    rebuckets: Ints
    """Segments that were given more entry buckets."""
    reversals: Ints
    sealed: Ints
    """Segments that were sealed: each makes its producers and consumers move (a disruption)."""
    segment_ms: Ints
    """Active segments, over time."""
    over_ms: Ints
    """Time in which a segment carries more than a split threshold of the yardstick."""
    waiting_ms: Ints
    """Consumers beyond the number of segments, or of entry buckets where they share segments by them, over time."""
    capped_ms: Ints
    """Time with as many segments as the policy allows, and a segment over a threshold or a consumer waiting."""
    most_segments: Ints
    actions: Actions = field(default_factory=Actions.none)
    series: list[tuple[int, int, int]] = field(default_factory=list)
    """Now and then: the instant, segments in all, topics with a segment over a threshold."""

    @property
    def topic_hours(self) -> float:
        """Return the simulated topic-hours."""
        return len(self.topics) * self.topic_ms / 3_600_000

    def to_json(self) -> dict[str, Any]:
        """Return the totals."""
        return {**self._counts(slice(None)), "topicHours": round(self.topic_hours, 3)}

    def of_topics(self) -> list[dict[str, Any]]:
        """Return the counts by topic, in their order."""
        return [{"topic": name, **self._counts(slice(index, index + 1))} for index, name in enumerate(self.topics)]

    def _counts(self, topics: slice) -> dict[str, Any]:
        return {
            "splits": int(self.splits[topics].sum()),
            "merges": int(self.merges[topics].sum()),
            **({"rebuckets": rebuckets} if (rebuckets := int(self.rebuckets[topics].sum())) else {}),
            "reversals": int(self.reversals[topics].sum()),
            "sealedSegments": int(self.sealed[topics].sum()),
            "segmentHours": round(float(self.segment_ms[topics].sum()) / 3_600_000, 3),
            "minutesOverThreshold": round(float(self.over_ms[topics].sum()) / 60_000, 3),
            "consumerMinutesWaiting": round(float(self.waiting_ms[topics].sum()) / 60_000, 3),
            "minutesAtCap": round(float(self.capped_ms[topics].sum()) / 60_000, 3),
            "mostSegments": int(self.most_segments[topics].max(initial=0)),
        }


COUNTS = tuple(column.name for column in fields(Outcome) if column.type == Ints)


def together(parts: Sequence[Outcome]) -> Outcome:
    """Join the outcomes of one policy on different topics over the same time; at least one part."""
    begins = np.cumsum([0, *(len(part.topics) for part in parts)])
    moved = [
        part.actions._replace(topic=part.actions.topic + begin)
        for part, begin in zip(parts, begins.tolist(), strict=False)
    ]
    columns: list[Any] = [np.concatenate(of_each) for of_each in zip(*moved, strict=True)]
    actions = Actions(*columns)
    order = np.lexsort((actions.topic, actions.at))
    return Outcome(
        topics=[name for part in parts for name in part.topics],
        topic_ms=parts[0].topic_ms,
        actions=actions.of(order),
        series=[
            (points[0][0], sum(point[1] for point in points), sum(point[2] for point in points))
            for points in zip(*(part.series for part in parts), strict=True)
        ],
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in COUNTS},
    )
