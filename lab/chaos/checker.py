"""What must be true of what clients saw of several controllers (design "What must always hold", PIP-468). Pure.

Stage: called by `lab.chaos.run` after each round and by tests, on a `ClientHistory`. A rule that is broken is one
line of words; an empty list means that nothing was found, not that nothing is there. What is carried from part to part
is bounded, and the work is linear in what was seen, but for sorting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from lab.chaos.history import (
    AnnouncedCount,
    AnnouncedLayout,
    Call,
    ClientHistory,
    End,
    Range,
    SeenAssignment,
    SeenLayout,
)

KEYS = 0x10000
KEPT_NAMES, KEPT_EPOCHS, KEPT_IDS = 2_000, 500, 10_000
"""Per topic: layouts by client, layouts by epoch, ranges by segment; the newest of each."""


def check(history: ClientHistory) -> list[str]:
    """Every rule that a whole history breaks, in words."""
    return Checker().check(history)


class Checker:
    """Judges a run part by part."""

    def __init__(self, repeats: bool = False) -> None:
        """`repeats`: announcements may come again in runs, as those do that are sent until Kafka has confirmed them."""
        self._repeats = repeats
        self._topics: dict[str, _Topic] = defaultdict(_Topic)

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
        return broken


class _Topic:
    """What is known of a topic from the parts before."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        """By the client that got it."""
        self._floor, self._floor_at = -1, float("-inf")
        """The newest epoch that any client has seen at that instant."""
        self._by_epoch: dict[int, Mapping[int, Range]] = {}
        self._by_id: dict[int, Range] = {}
        self._done = self._unknown = self._pruned = 0
        """Splits and merges that were done, those without an answer, and segments that were pruned."""
        self._registered: dict[str, set[bool]] = {}
        """The possible registrations of each consumer, unless it is certainly gone."""
        self._announced, self._segments = -1, 0
        """Of the layout that was announced last: epoch, number of segments."""
        self._counts: dict[str, int] = {}

    def forks(self, layouts: Sequence[SeenLayout]) -> Iterator[str]:
        """One epoch is one layout, and one id is one segment."""
        for layout in layouts:
            if self._by_epoch.setdefault(layout.epoch, layout.active) != layout.active:
                yield f"{layout.topic}: two layouts of epoch {layout.epoch}"
            for id, covers in layout.known.items():
                if self._by_id.setdefault(id, covers) != covers:
                    yield f"{layout.topic}: two segments of id {id}"
        self._by_epoch = dict(sorted(self._by_epoch.items())[-KEPT_EPOCHS:])
        self._by_id = dict(sorted(self._by_id.items())[-KEPT_IDS:])

    def steps_back(self, layouts: Sequence[SeenLayout]) -> Iterator[str]:
        """No client gets an older layout than before, or than any client already had when it asked."""
        by_end = sorted(layouts, key=lambda layout: layout.seen_at)
        for layout in by_end:
            before = self._newest.pop(layout.by, -1)
            if layout.epoch < before:
                yield f"{layout.topic}: {layout.by} went back from epoch {before} to {layout.epoch}"
            self._newest[layout.by] = max(layout.epoch, before)
        known, at = -1, 0
        for layout in sorted(by_end, key=lambda layout: layout.asked_at):
            if layout.asked_at > self._floor_at:
                known = max(known, self._floor)
            while at < len(by_end) and by_end[at].seen_at < layout.asked_at:
                known, at = max(known, by_end[at].epoch), at + 1
            if layout.epoch < known:
                yield (f"{layout.topic}: {layout.by} asked after epoch {known} was seen, and was given {layout.epoch}")
        for layout in by_end:
            self._floor, self._floor_at = max(self._floor, layout.epoch), max(self._floor_at, layout.seen_at)
        self._newest = dict(list(self._newest.items())[-KEPT_NAMES:])

    def take(self, call: Call) -> None:
        """A consumer makes one call at a time; the last certain one says whether it is registered."""
        uncertain = call.status is None or call.status >= 500
        if call.kind in ("split", "merge"):
            self._done += call.status == 204
            self._unknown += uncertain
            return
        wanted = call.kind == "register"
        if call.status in (204, 404):
            self._registered[call.what] = {wanted and call.status == 204}
        elif uncertain:
            self._registered.setdefault(call.what, {False}).add(wanted)
        if self._registered.get(call.what) == {False}:
            del self._registered[call.what]

    def follow_layout(self, announced: AnnouncedLayout, repeats: bool) -> Iterator[str]:
        """Every change is announced once, in order: a split or merge is one epoch, a pruned segment is one too."""
        before = self._announced
        if repeats and announced.epoch <= before:
            return
        step = self._segments - announced.segments if announced.cause == "prune" else 1
        if announced.epoch != before + step or step < 1:
            yield f"{announced.topic}: epoch {announced.epoch} ({announced.cause}) was announced after {before}"
        self._pruned += announced.epoch - before if announced.cause == "prune" else 0
        self._announced, self._segments = announced.epoch, announced.segments

    def follow_count(self, announced: AnnouncedCount, repeats: bool) -> Iterator[str]:
        """Consumers come and go one by one."""
        before = self._counts.get(announced.subscription, 0)
        if abs(announced.consumers - before) != 1 and not repeats:
            where = f"{announced.topic}: consumers of {announced.subscription}"
            yield f"{where} were announced as {announced.consumers} after {before}"
        self._counts[announced.subscription] = announced.consumers

    def changes(self, end: End) -> Iterator[str]:
        """A split or merge raises the epoch by one: one that was answered did, one without an answer may have."""
        if not self._done <= end.layout.epoch - self._pruned <= self._done + self._unknown:
            yield (
                f"{end.layout.topic}: {self._done} changes were done and {self._unknown} had no answer, "
                f"{self._pruned} segments were pruned, but the epoch is {end.layout.epoch}"
            )

    def registrations(self, end: End) -> Iterator[str]:
        """Exactly the consumers that registered are registered."""
        found = {f"{subscription}/{name}" for subscription, names in end.consumers.items() for name in names}
        for what, may_be in sorted(self._registered.items()):
            if (what in found) not in may_be:
                yield f"{end.layout.topic}: the registration of {what} is {'there' if what in found else 'lost'}"
        for what in sorted(found - self._registered.keys()):
            yield f"{end.layout.topic}: nobody has registered {what}, or it was unregistered"

    def announcements(self, end: End) -> Iterator[str]:
        """The newest announcement is the truth."""
        if self._announced != end.layout.epoch:
            yield f"{end.layout.topic}: epoch {self._announced} was announced last, and it is at {end.layout.epoch}"
        for subscription, names in sorted(end.consumers.items()):
            if self._counts.get(subscription, 0) != len(names):
                told = f"{self._counts.get(subscription, 0)} consumers of {subscription} were announced last"
                yield f"{end.layout.topic}: {told}, and there are {len(names)}"


def _gaps(layout: SeenLayout) -> Iterator[str]:
    following = 0
    for start, stop in sorted(layout.active.values()):
        if start != following:
            kind = "overlap" if start < following else "gap"
            yield f"{layout.topic}: {kind} at {min(start, following):04x} in epoch {layout.epoch}"
        following = max(following, stop + 1)
    if following != KEYS:
        yield f"{layout.topic}: gap at {following:04x} in epoch {layout.epoch}"


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
