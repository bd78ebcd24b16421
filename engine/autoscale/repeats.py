"""Deduplication of periodic snapshots, in which controllers repeat all layouts and consumer counts.

Layouts are mostly repeated by digest. A digest never changes state; one that differs from the known layout is
counted, because the layout itself comes again in full (`schemas.codecs.known_layouts.FULL_EVERY`).

Stage: before parsing, for plain announcements that would change nothing: of a known topic, of its present
incarnation or of none named, and not from a newer sender. They count as accepted but are not rows of `events`, since a
replay without them reaches the same state.
"""

from engine.autoscale.topics import BucketState, TopicState
from schemas.codecs.plain_events import PlainConsumerEvent, PlainEvent, PlainLayoutEvent, digest_of
from schemas.kafka.messages import LayoutsKnown


def is_known_layout(state: BucketState, event: PlainLayoutEvent) -> bool:
    """Return whether a snapshot repeats the known layout, judged by its bytes without parsing."""
    topic = state.topics.get(event.topic)
    return (
        topic is not None
        and topic.known is not None
        and event.cause == "snapshot"
        and _says_no_more(topic, event, topic.layout_sender)
        and topic.known.digest == digest_of(event.layout)
    )


def count_unknown(state: BucketState, event: LayoutsKnown, now: int) -> int:
    """Count entries that differ from the known state and are not late.

    An entry is late if its sender or layout is older, or its topic was deleted since. `now`: the batch's time.
    """
    topics, unknown = state.topics, 0
    for name, epoch, digest in zip(event.topics, event.epochs, event.digests, strict=True):
        if type(name) is not str or type(epoch) is not int:
            continue  # refused before the shuffle
        topic = topics.get(name)
        if topic is not None and topic.known is not None:
            layout = topic.known
            is_late = epoch < layout.epoch or (event.sender is not None and event.sender < topic.layout_sender)
            unknown += layout.digest != digest and not is_late
        else:
            ended = state.end_of(name, now)
            unknown += ended is None or event.at > ended.at
    return unknown


def are_known_consumers(state: BucketState, event: PlainConsumerEvent) -> bool:
    """Return whether a snapshot repeats the known count of a topic whose layout has arrived."""
    topic = state.topics.get(event.topic)
    return (
        topic is not None
        and topic.known is not None
        and event.event == "snapshot"
        and _says_no_more(topic, event, topic.consumers_sender)
        and topic.consumers.get(event.subscription) == (event.type, event.consumers)
    )


def _says_no_more(topic: TopicState, event: PlainEvent, newest_sender: int) -> bool:
    """Return True for an announcement of this incarnation, or of none named, whose sender is not newer."""
    is_of_this_life = event.topic_created_at is None or event.topic_created_at == topic.created_at
    return is_of_this_life and (event.sender is None or event.sender <= newest_sender)
