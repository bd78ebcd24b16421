"""Parsing, the family's half: what is derived from a message before it is taken in. Pure, and of one message only.

Stage: the first of a record's way (parse, filter, store, count, record), behind `engine.kernel.parsing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decisions.topic.layout import LayoutError, SegmentLayout
from engine.kernel.family import Reading
from schemas.messages import (
    MAX_CLOCK_AHEAD_MS,
    ConsumerEvent,
    LayoutEvent,
    OutcomeEvent,
    PolicyEvent,
    Rejected,
    RejectReason,
    SegmentStats,
)


@dataclass(frozen=True)
class NewLayout:
    """An announced layout: the event, the layout as the decisions see it, and its record as it is kept."""

    event: LayoutEvent
    layout: SegmentLayout
    metadata_json: str


@dataclass(frozen=True)
class TopicDeleted:
    """The announcement that a topic is gone."""

    event: LayoutEvent
    layout: SegmentLayout | None
    """Its last layout; None where that is none."""


Taken = NewLayout | TopicDeleted | ConsumerEvent | PolicyEvent | OutcomeEvent
"""What the family takes in, sample apart."""


def read_layout(event: LayoutEvent, now: int) -> NewLayout | TopicDeleted | Rejected:
    """The layout of an event, unless its active segments do not tile the hash space."""
    try:
        layout = SegmentLayout.from_metadata(event.layout)
    except LayoutError as error:
        if event.cause == "deleted":
            return TopicDeleted(event, None)
        return Rejected(RejectReason.BAD_LAYOUT, str(error)[:500])
    return TopicDeleted(event, layout) if event.cause == "deleted" else NewLayout(event, layout, event.layout.to_json())


def read_sample(stats: SegmentStats, now: int) -> SegmentStats | Rejected:
    """A sample, unless its reporter's clock is too far ahead; `now` is the later of Kafka's time and the batch's."""
    if stats.sampled_at > now + MAX_CLOCK_AHEAD_MS:
        ahead = (stats.sampled_at - now) // 1000
        return Rejected(
            RejectReason.FROM_THE_FUTURE, f"sampledAt is {ahead} s ahead of Kafka's clock and of this job's"
        )
    return stats


def _as_it_is(message: Any, now: int) -> Any:
    return message


READINGS: dict[type, Reading] = {
    LayoutEvent: read_layout,
    SegmentStats: read_sample,
    ConsumerEvent: _as_it_is,
    PolicyEvent: _as_it_is,
    OutcomeEvent: _as_it_is,
}
"""By the model of a message."""
