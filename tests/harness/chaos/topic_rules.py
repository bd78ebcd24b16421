"""Rules for one topic through all its lives; state is carried from part to part of a run. Pure.

Stage: under `tests.harness.chaos.checker`. A topic that is deleted and created again has a new life; epochs, segments
and registrations begin anew in it, and lives follow one another as epochs do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.harness.chaos.history import AnnouncedCount, AnnouncedLayout, Call, End, Range, SeenLayout, named

KEPT_NAMES, KEPT_EPOCHS, KEPT_IDS, KEPT_LIVES = 2_000, 500, 10_000, 4
"""Per topic: layouts by client, layouts by epoch, ranges by segment, lives; the newest of each."""
Version = tuple[int, int]
_NEVER: Version = (-1, -1)


class TopicRules:
    """State of a topic carried over from earlier parts."""

    def __init__(self) -> None:
        self._newest: dict[str, Version] = {}
        """By the client that got it."""
        self._floor, self._floor_at = _NEVER, float("-inf")
        """The newest version that any client has seen at that instant."""
        self._by_epoch: dict[Version, Mapping[int, Range]] = {}
        self._by_id: dict[Version, Range] = {}
        self._lives: dict[int, _Life] = defaultdict(_Life)
        self._announced_life = -1
        self._counts: dict[str, int] = {}

    def forks(self, layouts: Sequence[SeenLayout]) -> Iterator[str]:
        """One epoch is one layout, and one id is one segment."""
        for layout in layouts:
            if self._by_epoch.setdefault(layout.version, layout.active) != layout.active:
                yield f"{layout.topic}: two layouts of {layout.where}"
            for id, covers in layout.known.items():
                if self._by_id.setdefault((layout.life, id), covers) != covers:
                    yield f"{layout.topic}: two segments of id {id}"
        self._by_epoch = dict(sorted(self._by_epoch.items())[-KEPT_EPOCHS:])
        self._by_id = dict(sorted(self._by_id.items())[-KEPT_IDS:])

    def steps_back(self, layouts: Sequence[SeenLayout]) -> Iterator[str]:
        """No client gets an older layout than before, or than any client already had when it asked."""
        by_end = sorted(layouts, key=lambda layout: layout.seen_at)
        for layout in by_end:
            before = self._newest.pop(layout.by, _NEVER)
            if layout.version < before:
                yield f"{layout.topic}: {layout.by} went back from {named(*before)} to {layout.epoch}"
            self._newest[layout.by] = max(layout.version, before)
        known, at = _NEVER, 0
        for layout in sorted(by_end, key=lambda layout: layout.asked_at):
            if layout.asked_at > self._floor_at:
                known = max(known, self._floor)
            while at < len(by_end) and by_end[at].seen_at < layout.asked_at:
                known, at = max(known, by_end[at].version), at + 1
            if layout.version < known:
                given = named(layout.life, layout.epoch).removeprefix("epoch ")
                yield f"{layout.topic}: {layout.by} asked after {named(*known)} was seen, and was given {given}"
        for layout in by_end:
            self._floor, self._floor_at = max(self._floor, layout.version), max(self._floor_at, layout.seen_at)
        self._newest = dict(list(self._newest.items())[-KEPT_NAMES:])

    def take(self, call: Call) -> None:
        """Record what a call may have changed in its life."""
        self._lives[call.life].take(call)

    def forget(self) -> None:
        """Drop lives that can no longer be mentioned.

        Call it only at the end of a part: some announcements concern lives that the part's calls, which are examined
        first, left behind.
        """
        for old in sorted(self._lives)[:-KEPT_LIVES]:
            del self._lives[old]

    def follow_layout(self, announced: AnnouncedLayout, repeats: bool) -> Iterator[str]:
        """Life after life, and in each every change is announced once, in order."""
        if announced.life < self._announced_life:
            if not repeats:
                yield f"{announced.topic}: life {announced.life} was announced after life {self._announced_life}"
            return
        self._announced_life = announced.life
        yield from self._lives[announced.life].follow(announced, repeats)

    def follow_count(self, announced: AnnouncedCount, repeats: bool) -> Iterator[str]:
        """Consumers come and go one by one; with their subscription all of them go."""
        before = self._counts.get(announced.subscription, 0)
        if abs(announced.consumers - before) != 1 and not announced.deleted and not repeats:
            where = f"{announced.topic}: consumers of {announced.subscription}"
            yield f"{where} were announced as {announced.consumers} after {before}"
        self._counts[announced.subscription] = announced.consumers

    def changes(self, end: End) -> Iterator[str]:
        """See `_Life`."""
        yield from self._lives[end.layout.life].changes(end)

    def registrations(self, end: End) -> Iterator[str]:
        """See `_Life`."""
        yield from self._lives[end.layout.life].registrations(end)

    def announcements(self, end: End) -> Iterator[str]:
        """The newest announcement is the truth."""
        announced = self._lives[end.layout.life].announced if self._announced_life == end.layout.life else -1
        if announced != end.layout.epoch:
            yield f"{end.layout.topic}: epoch {announced} was announced last, and it is at {end.layout.epoch}"
        for subscription, names in sorted(end.consumers.items()):
            if self._counts.get(subscription, 0) != len(names):
                told = f"{self._counts.get(subscription, 0)} consumers of {subscription} were announced last"
                yield f"{end.layout.topic}: {told}, and there are {len(names)}"


class _Life:
    """One life of a topic."""

    def __init__(self) -> None:
        self.done = self.unknown = self.pruned = 0
        """Splits and merges that were done, those without an answer, and segments that were pruned."""
        self.registered: dict[str, set[bool]] = {}
        """The possible registrations of each consumer, unless it is certainly gone."""
        self.announced, self.segments = -1, 0
        """Of the layout that was announced last: epoch, number of segments."""
        self.is_over = False

    def take(self, call: Call) -> None:
        """A consumer makes one call at a time; the last certain one says whether it is registered."""
        uncertain = call.status is None or call.status >= 500
        if call.kind in ("split", "merge"):
            self.done += call.status == 204
            self.unknown += uncertain
            return
        wanted = call.kind == "register"
        if call.status in (204, 404):
            self.registered[call.what] = {wanted and call.status == 204}
        elif uncertain:
            self.registered.setdefault(call.what, {False}).add(wanted)
        if self.registered.get(call.what) == {False}:
            del self.registered[call.what]

    def follow(self, announced: AnnouncedLayout, repeats: bool) -> Iterator[str]:
        """A split or merge is one epoch, a pruned segment is one too; the deletion is the last."""
        before = self.announced
        if announced.cause == "deleted":
            if (self.is_over or announced.epoch != before) and not repeats:
                yield f"{announced.topic}: its deletion was announced at epoch {announced.epoch} after {before}"
            self.is_over = True
            return
        if repeats and announced.epoch <= before:
            return
        step = self.segments - announced.segments if announced.cause == "prune" else 1
        if announced.epoch != before + step or step < 1 or self.is_over:
            yield f"{announced.topic}: epoch {announced.epoch} ({announced.cause}) was announced after {before}"
        self.pruned += announced.epoch - before if announced.cause == "prune" else 0
        self.announced, self.segments = announced.epoch, announced.segments

    def changes(self, end: End) -> Iterator[str]:
        """A split or merge raises the epoch by one: one that was answered did, one without an answer may have."""
        if not self.done <= end.layout.epoch - self.pruned <= self.done + self.unknown:
            yield (
                f"{end.layout.topic}: {self.done} changes were done and {self.unknown} had no answer, "
                f"{self.pruned} segments were pruned, but the epoch is {end.layout.epoch}"
            )

    def registrations(self, end: End) -> Iterator[str]:
        """Exactly the consumers that registered are registered."""
        found = {f"{subscription}/{name}" for subscription, names in end.consumers.items() for name in names}
        for what, may_be in sorted(self.registered.items()):
            if (what in found) not in may_be:
                yield f"{end.layout.topic}: the registration of {what} is {'there' if what in found else 'lost'}"
        for what in sorted(found - self.registered.keys()):
            yield f"{end.layout.topic}: nobody has registered {what}, or it was unregistered"
