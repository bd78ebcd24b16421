"""Rules for what clients saw of several controllers (design "What must always hold", PIP-468). Pure.

Stage: called by `tests.harness.chaos.run` after each round and by tests, on a `ClientHistory`. Each broken rule is
reported in one line; an empty list means that no violation was seen, not that there is none. The state carried from
round to round is bounded, and apart from sorting the work is linear in the size of the history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.harness.chaos.history import AnnouncedLayout, ClientHistory, Delivery, End, SeenAssignment, SeenLayout
from tests.harness.chaos.ownership import two_owners
from tests.harness.chaos.topic_rules import TopicRules

KEYS = 0x10000


def check(history: ClientHistory) -> list[str]:
    """Every rule that a whole history breaks, in words."""
    return Checker().check(history)


class Checker:
    """Judges a run part by part."""

    def __init__(self, repeats: bool = False) -> None:
        """Start without history.

        `repeats`: announcements may come again in runs, as those do that are sent until Kafka has confirmed them.
        """
        self._repeats = repeats
        self._topics: dict[str, TopicRules] = defaultdict(TopicRules)

    def check(self, history: ClientHistory) -> list[str]:
        """Every rule that the next part breaks, in words."""
        seen: dict[str, list[SeenLayout]] = defaultdict(list)
        for layout in (*history.layouts, *(end.layout for end in history.ends)):
            seen[layout.topic].append(layout)
        broken: list[str] = []
        for name, layouts in sorted(seen.items()):
            topic = self._topics[name]
            broken += dict.fromkeys(found for layout in layouts for found in _gaps(layout))
            broken += dict.fromkeys(topic.forks(layouts))
            broken += topic.steps_back(layouts)
        broken += [
            f"{one.topic}: {one.by} asked {one.asked_at - one.exists_since:.2f} s after its creation, and was told "
            "that it does not exist"
            for one in history.absences
        ]
        broken += two_owners(history.held)
        for delivery in history.deliveries:
            broken += _lost_messages(delivery)
        for assignment in history.assignments:
            broken += _owners(assignment)
        broken += [
            f"{one.topic}: {one.consumer} of {one.subscription} was evicted: {one.reason}" for one in history.lost
        ]
        for call in history.calls:
            self._topics[call.topic].take(call)
        for announced in history.announced:
            topic = self._topics[announced.topic]
            broken += (
                topic.follow_layout(announced, self._repeats)
                if isinstance(announced, AnnouncedLayout)
                else topic.follow_count(announced, self._repeats)
            )
        for end in history.ends:
            topic = self._topics[end.layout.topic]
            broken += [*topic.changes(end), *topic.registrations(end), *topic.announcements(end), *_segment_topics(end)]
            broken += [f"{end.layout.topic}: the {operation} is half done" for operation in end.open_operations]
        for topic in self._topics.values():
            topic.forget()
        return broken


def _gaps(layout: SeenLayout) -> Iterator[str]:
    following = 0
    for start, stop in sorted(layout.active.values()):
        if start != following:
            kind = "overlap" if start < following else "gap"
            yield f"{layout.topic}: {kind} at {min(start, following):04x} in {layout.where}"
        following = max(following, stop + 1)
    if following != KEYS:
        yield f"{layout.topic}: gap at {following:04x} in {layout.where}"


def _owners(assignment: SeenAssignment) -> Iterator[str]:
    owners: dict[int, list[str]] = defaultdict(list)
    for consumer, segments in sorted(assignment.held.items()):
        for segment in segments:
            owners[segment].append(consumer)
    where = f"{assignment.topic}: in {assignment.subscription}"
    for segment, names in sorted(owners.items()):
        if len(names) > 1:
            yield f"{where} segment {segment} belongs to {' and '.join(names)}"
    for segment in sorted(assignment.wanted - owners.keys()):
        yield f"{where} segment {segment} belongs to nobody"


def _lost_messages(delivery: Delivery) -> Iterator[str]:
    """Yield a violation if confirmed messages were never read, despite splits, merges and pruning."""
    lost = sorted(delivery.sent - delivery.received)
    if lost:
        which = ", ".join(map(str, lost[:5]))
        yield f"{delivery.topic}: {len(lost)} of {len(delivery.sent)} messages were never read: {which}"


def _segment_topics(end: End) -> Iterator[str]:
    """Every segment of the layout has its topic, terminated if it is sealed, and there are no others."""
    if end.segment_topics is None:
        return
    for segment in sorted(end.segments.keys() | end.segment_topics.keys()):
        if segment not in end.segment_topics:
            yield f"{segment} has no topic"
        elif segment not in end.segments:
            yield f"{segment} has a topic and is in no layout"
        elif end.segments[segment] != end.segment_topics[segment]:
            yield f"{segment} {'is sealed and takes writes' if end.segments[segment] else 'is active and takes none'}"
