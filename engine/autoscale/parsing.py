"""The family's part of parsing: derive values from one message. Pure.

Stage: the first of a record (parse, filter, store, count, record), after `engine.kernel.parsing`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from decisions.topic.layout import LayoutError, SegmentLayout
from engine.autoscale.layouts import ReadLayout, layout_of_model, plain_layout
from engine.kernel.family import Reading, read_unchanged
from schemas.codecs.plain_events import PlainConsumerEvent, PlainLayoutEvent
from schemas.kafka.messages import (
    MAX_CLOCK_AHEAD_MS,
    ConsumerEvent,
    LayoutEvent,
    LayoutsKnown,
    OutcomeEvent,
    PolicyEvent,
    Rejected,
    RejectReason,
    SegmentStats,
    SegmentStatsColumns,
)

LayoutAnnouncement: TypeAlias = LayoutEvent | PlainLayoutEvent
ConsumerAnnouncement: TypeAlias = ConsumerEvent | PlainConsumerEvent


@dataclass(frozen=True, slots=True)
class NewLayout:
    """An announced layout: the event and the layout read from it."""

    event: LayoutAnnouncement
    read: ReadLayout

    @property
    def layout(self) -> SegmentLayout:
        """The layout in the form that decisions use."""
        return self.read.layout


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The announcement that a topic was deleted."""

    event: LayoutAnnouncement
    layout: SegmentLayout | None
    """Its last layout; None if unreadable."""


Taken = NewLayout | LayoutsKnown | TopicDeleted | ConsumerAnnouncement | PolicyEvent | OutcomeEvent
"""Messages that the family accepts, samples apart."""


def read_layout(event: LayoutEvent, now: int) -> NewLayout | TopicDeleted | Rejected | None:
    """Read the layout of an event; rejected if its active segments do not tile the hash space."""
    return _of_layout(event, lambda: layout_of_model(event.layout))


def read_plain_layout(event: PlainLayoutEvent, now: int) -> NewLayout | TopicDeleted | Rejected | None:
    """Read the layout of a plain event; None when the layout is not plain."""
    return _of_layout(event, lambda: plain_layout(event.layout))


def _of_layout(
    event: LayoutAnnouncement, read: Callable[[], ReadLayout | None]
) -> NewLayout | TopicDeleted | Rejected | None:
    try:
        decoded = read()
    except LayoutError as error:
        if event.cause == "deleted":
            return TopicDeleted(event, None)
        return Rejected(RejectReason.BAD_LAYOUT, str(error)[:500])
    if decoded is None:
        return None
    return TopicDeleted(event, decoded.layout) if event.cause == "deleted" else NewLayout(event, decoded)


def read_samples(stats: SegmentStats | SegmentStatsColumns, now: int) -> SegmentStats | SegmentStatsColumns | Rejected:
    """Return samples, rejected if the reporter's clock leads `now` (the later of Kafka's and ours)."""
    if stats.sampled_at > now + MAX_CLOCK_AHEAD_MS:
        ahead = (stats.sampled_at - now) // 1000
        return Rejected(
            RejectReason.FROM_THE_FUTURE, f"sampledAt is {ahead} s ahead of Kafka's clock and of this job's"
        )
    return stats


READINGS: dict[type, Reading] = {
    LayoutEvent: read_layout,
    PlainLayoutEvent: read_plain_layout,
    LayoutsKnown: read_unchanged,
    PlainConsumerEvent: read_unchanged,
    SegmentStats: read_samples,
    SegmentStatsColumns: read_samples,
    ConsumerEvent: read_unchanged,
    PolicyEvent: read_unchanged,
    OutcomeEvent: read_unchanged,
}
"""Reader by message model."""
