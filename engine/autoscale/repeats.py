"""Snapshots that say what is known: controllers repeat every layout and every count of consumers now and then.

Layouts are repeated by their digests mostly. Such a one can change nothing, whatever it says: one that is not of the
known layout is counted, for the layout itself comes again in full (`schemas.known_layouts.FULL_EVERY`).

Stage: before parsing, of announcements that are plain. Of such a one nothing would change: it is of the life that is
known or of an earlier one, and nobody is remembered by it who was not before. It is counted as accepted, and is no row
of `events`: a replay without it comes to the same state.
"""

from __future__ import annotations

from engine.autoscale.topics import BucketState, TopicState
from schemas.messages import LayoutsKnown
from schemas.plain_events import PlainConsumerEvent, PlainEvent, PlainLayoutEvent, digest_of


def is_known_layout(state: BucketState, event: PlainLayoutEvent) -> bool:
    """Whether a snapshot shows the layout that is known, judged by its bytes: its layout need not be read."""
    topic = state.topics.get(event.topic)
    return (
        topic is not None
        and topic.known is not None
        and event.cause == "snapshot"
        and _says_no_more(topic, event, topic.layout_sender)
        and topic.known.digest == digest_of(event.layout)
    )


def count_unknown(state: BucketState, event: LayoutsKnown, now: int) -> int:
    """How many entries say something else than the bucket knows, and are not late: of a sender before, of an older
    layout, or of a topic that was deleted since. `now`: the batch's time."""
    topics, unknown = state.topics, 0
    for name, epoch, digest in zip(event.topics, event.epochs, event.digests, strict=True):
        if type(name) is not str or type(epoch) is not int:
            continue  # refused before the shuffle
        topic = topics.get(name)
        if topic is not None and topic.known is not None:
            known = topic.known
            is_late = epoch < known.epoch or (event.sender is not None and event.sender < topic.layout_sender)
            unknown += known.digest != digest and not is_late
        else:
            ended = state.end_of(name, now)
            unknown += ended is None or event.at > ended.at
    return unknown


def are_known_consumers(state: BucketState, event: PlainConsumerEvent) -> bool:
    """Whether a snapshot has the count that is known, of a topic whose layout has come."""
    topic = state.topics.get(event.topic)
    return (
        topic is not None
        and topic.known is not None
        and event.event == "snapshot"
        and _says_no_more(topic, event, topic.consumers_sender)
        and topic.consumers.get(event.subscription) == (event.type, event.consumers)
    )


def _says_no_more(topic: TopicState, event: PlainEvent, newest_sender: int) -> bool:
    """Whether neither the sender of an announcement nor the life that it names is another than what is known."""
    is_of_this_life = event.topic_created_at is None or event.topic_created_at == topic.created_at
    return is_of_this_life and (event.sender is None or event.sender <= newest_sender)
