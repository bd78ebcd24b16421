"""Incarnations of a topic: a deleted and recreated topic is another topic of the same name.

Nothing carries over from one incarnation to the next: no consumers, loads, clocks or open decision. Announcements
about an earlier one, late or repeated, are ignored. An announcement names its incarnation in `topicCreatedAt`; where
it does not, as with Pulsar's own, it is judged by its time, and layouts by their segments.

Stage: under filtering. A bucket remembers when incarnations ended for as long as Kafka keeps the announcements.
"""

from enum import Enum

from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import compare_lives
from engine.autoscale.parsing import ConsumerAnnouncement, NewLayout, TopicDeleted
from engine.autoscale.topics import BucketState, TopicEnd, TopicState


def began_with(layout: SegmentLayout) -> int | None:
    """Return when a layout's incarnation began, by its oldest segment unless pruned; None if unknown."""
    return min(
        (segment.created_at_ms for segment in layout.segments.values() if segment.created_at_ms > 0), default=None
    )


class TopicIncarnation(Enum):
    """Incarnation of an announcement relative to the known one."""

    EARLIER = "one that has ended"
    THIS = "the one that is known, or the first"
    LATER = "one that begins with it"


def life_of_layout(state: BucketState, new: NewLayout, now: int) -> TopicIncarnation:
    """Return the incarnation of a layout."""
    event, topic = new.event, state.topics.get(new.event.topic)
    ended = state.end_of(event.topic, now)
    life = _judge_instants(topic, ended, event.topic_created_at, event.at, ended is not None and event.at < ended.at)
    if life is not TopicIncarnation.THIS or topic is None:
        return life
    if topic.known is None:
        return (
            TopicIncarnation.LATER
            if _is_of_nobody(state, topic, event.topic_created_at, now)
            else TopicIncarnation.THIS
        )
    if event.topic_created_at is None or topic.created_at is None:
        return (TopicIncarnation.THIS, TopicIncarnation.LATER, TopicIncarnation.EARLIER)[
            compare_lives(topic.known.layout.segments, new.layout.segments)
        ]
    return TopicIncarnation.THIS


def life_of_deletion(state: BucketState, deletion: TopicDeleted, now: int) -> TopicIncarnation:
    """Return the incarnation that a deletion ends."""
    event, topic = deletion.event, state.topics.get(deletion.event.topic)
    ended = state.end_of(event.topic, now)
    life = _judge_instants(topic, ended, event.topic_created_at, event.at, ended is not None and event.at <= ended.at)
    if (
        life is TopicIncarnation.THIS
        and topic is not None
        and topic.known
        and deletion.layout
        and event.topic_created_at is None
    ):
        return (
            TopicIncarnation.EARLIER
            if compare_lives(topic.known.layout.segments, deletion.layout.segments) < 0
            else TopicIncarnation.THIS
        )
    return life


def life_of_consumers(state: BucketState, event: ConsumerAnnouncement, now: int) -> TopicIncarnation:
    """Return the incarnation of a consumer count."""
    topic, ended = state.topics.get(event.topic), state.end_of(event.topic, now)
    life = _judge_instants(topic, ended, event.topic_created_at, event.at, ended is not None and event.at <= ended.at)
    if life is TopicIncarnation.THIS and topic is not None and _is_of_nobody(state, topic, event.topic_created_at, now):
        return TopicIncarnation.LATER
    return life


def _judge_instants(
    topic: TopicState | None, ended: TopicEnd | None, created_at: int | None, happened_at: int, is_before_end: bool
) -> TopicIncarnation:
    """Judge by instants; `is_before_end` applies to announcements that name no incarnation."""
    if created_at is None:
        is_before_this = topic is not None and topic.created_at is not None and happened_at < topic.created_at
        return TopicIncarnation.EARLIER if is_before_end or is_before_this else TopicIncarnation.THIS
    if ended is not None and created_at <= (ended.at if ended.created_at is None else ended.created_at):
        return TopicIncarnation.EARLIER
    if topic is None or topic.created_at is None or created_at == topic.created_at:
        return TopicIncarnation.THIS
    return TopicIncarnation.LATER if created_at > topic.created_at else TopicIncarnation.EARLIER


def _is_of_nobody(state: BucketState, topic: TopicState, created_at: int | None, now: int) -> bool:
    """Return whether a topic is of an earlier, unknown incarnation, whose layout will never arrive."""
    if topic.known is not None or (created_at is not None and topic.created_at == created_at):
        return False
    return state.waits_in_vain(topic, now) or (
        created_at is not None and topic.created_at is None and topic.heard_at < created_at
    )
