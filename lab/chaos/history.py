"""What clients saw of several controllers, and what must have been true of it (DESIGN section 5, PIP-468). Pure.

Stage: filled by `lab.chaos.clients` and `lab.chaos.run`. All instants are seconds of one clock. A rule that is broken
is one line of words; an empty list means that nothing was found, not that nothing is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Range = tuple[int, int]
KEYS = 0x10000


@dataclass(frozen=True)
class SeenLayout:
    """A layout that somebody was given."""

    topic: str
    epoch: int
    active: Mapping[int, Range]
    """Hash range by segment id."""
    known: Mapping[int, Range]
    """The same of all segments, sealed ones too."""
    by: str
    """One watch session, or one caller; what it is given never goes back."""
    asked_at: float
    seen_at: float


@dataclass(frozen=True)
class Call:
    """Something that was asked for; `status` None: no answer came, so it may have happened or not."""

    topic: str
    kind: Literal["split", "merge", "register", "unregister"]
    what: str
    """The segments; or the subscription and the consumer."""
    status: int | None


@dataclass(frozen=True)
class Holding:
    """What the consumers of one subscription held at a moment at which nothing moved; ids of segments by consumer."""

    topic: str
    subscription: str
    wanted: frozenset[int]
    """The segments that are to be read."""
    held: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class LostSession:
    """A consumer that was told that it is no member any more, although it never was away for the grace period."""

    topic: str
    subscription: str
    consumer: str
    reason: str


@dataclass(frozen=True)
class End:
    """What is in the store of a topic at the end."""

    layout: SeenLayout
    open_operations: tuple[str, ...]
    consumers: Mapping[str, frozenset[str]]
    """By subscription."""
    announced_epochs: tuple[int, ...]
    """Of all announcements of its layout, in the order in which they are sent."""
    announced_counts: Mapping[str, tuple[int, ...]]
    """By subscription: how many consumers there are after each announcement."""


@dataclass
class History:
    """One run."""

    layouts: list[SeenLayout] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    lost: list[LostSession] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


def check(history: History) -> list[str]:
    """Every rule that is broken, in words."""
    seen: dict[str, list[SeenLayout]] = defaultdict(list)
    for layout in history.layouts:
        seen[layout.topic].append(layout)
    for end in history.ends:
        seen[end.layout.topic].append(end.layout)
    broken: list[str] = []
    for topic, layouts in sorted(seen.items()):
        broken += dict.fromkeys(found for layout in layouts for found in _gaps(layout))
        broken += dict.fromkeys(_forks(topic, layouts))
        broken += _steps_back(topic, layouts)
    for holding in history.holdings:
        broken += _owners(holding)
    broken += [f"{one.topic}: {one.consumer} of {one.subscription} was put out: {one.reason}" for one in history.lost]
    for end in history.ends:
        calls = [call for call in history.calls if call.topic == end.layout.topic]
        broken += [*_changes(end, calls), *_registrations(end, calls), *_announcements(end)]
        broken += [f"{end.layout.topic}: the {operation} is half done" for operation in end.open_operations]
    return broken


def _gaps(layout: SeenLayout) -> Iterator[str]:
    following = 0
    for start, stop in sorted(layout.active.values()):
        if start != following:
            kind = "overlap" if start < following else "gap"
            yield f"{layout.topic}: {kind} at {min(start, following):04x} in epoch {layout.epoch}"
        following = max(following, stop + 1)
    if following != KEYS:
        yield f"{layout.topic}: gap at {following:04x} in epoch {layout.epoch}"


def _forks(topic: str, layouts: Sequence[SeenLayout]) -> Iterator[str]:
    """One epoch is one layout, and one id is one segment."""
    by_epoch: dict[int, Mapping[int, Range]] = {}
    by_id: dict[int, Range] = {}
    for layout in layouts:
        if by_epoch.setdefault(layout.epoch, layout.active) != layout.active:
            yield f"{topic}: two layouts of epoch {layout.epoch}"
        for id, covers in layout.known.items():
            if by_id.setdefault(id, covers) != covers:
                yield f"{topic}: two segments of id {id}"


def _steps_back(topic: str, layouts: Iterable[SeenLayout]) -> Iterator[str]:
    """Nobody is given an older layout than before, nor than anybody had when it was asked for."""
    newest: dict[str, int] = {}
    by_end = sorted(layouts, key=lambda layout: layout.seen_at)
    known, at = -1, 0
    for layout in by_end:
        if layout.epoch < newest.get(layout.by, -1):
            yield f"{topic}: {layout.by} went back from epoch {newest[layout.by]} to {layout.epoch}"
        newest[layout.by] = max(layout.epoch, newest.get(layout.by, -1))
    for layout in sorted(by_end, key=lambda layout: layout.asked_at):
        while at < len(by_end) and by_end[at].seen_at < layout.asked_at:
            known, at = max(known, by_end[at].epoch), at + 1
        if layout.epoch < known:
            yield f"{topic}: {layout.by} asked after epoch {known} was seen, and was given {layout.epoch}"


def _owners(holding: Holding) -> Iterator[str]:
    owners: dict[int, list[str]] = defaultdict(list)
    for consumer, segments in sorted(holding.held.items()):
        for segment in segments:
            owners[segment].append(consumer)
    where = f"{holding.topic}: in {holding.subscription}"
    for segment, names in sorted(owners.items()):
        if len(names) > 1:
            yield f"{where} segment {segment} belongs to {' and '.join(names)}"
    for segment in sorted(holding.wanted - owners.keys()):
        yield f"{where} segment {segment} belongs to nobody"


def _changes(end: End, calls: Sequence[Call]) -> Iterator[str]:
    """Every split and merge raises the epoch by one: those that were answered did, those without an answer may have."""
    changes = [call for call in calls if call.kind in ("split", "merge")]
    done = sum(call.status == 204 for call in changes)
    unknown = sum(call.status is None or call.status >= 500 for call in changes)
    if not done <= end.layout.epoch <= done + unknown:
        yield (
            f"{end.layout.topic}: {done} changes were done and {unknown} had no answer, "
            f"but the epoch is {end.layout.epoch}"
        )


def _registrations(end: End, calls: Sequence[Call]) -> Iterator[str]:
    """A consumer's calls come one after the other; the last that is certain says where it stands."""
    allowed: dict[str, set[bool]] = {}
    for call in calls:
        if call.kind in ("register", "unregister"):
            wanted = call.kind == "register"
            if call.status in (204, 404):
                allowed[call.what] = {wanted and call.status == 204}
            elif call.status is None or call.status >= 500:
                allowed.setdefault(call.what, {False}).add(wanted)
    found = {f"{subscription}/{name}" for subscription, names in end.consumers.items() for name in names}
    for what, may_be in sorted(allowed.items()):
        if (what in found) not in may_be:
            yield f"{end.layout.topic}: the registration of {what} is {'there' if what in found else 'lost'}"
    for what in sorted(found - allowed.keys()):
        yield f"{end.layout.topic}: nobody has registered {what}"


def _announcements(end: End) -> Iterator[str]:
    if end.announced_epochs != tuple(range(end.layout.epoch + 1)):
        yield f"{end.layout.topic}: its epochs were announced as {_shortened(end.announced_epochs)}"
    for subscription, counts in sorted(end.announced_counts.items()):
        steps = {after - before for before, after in zip((0, *counts), counts, strict=False)}
        if not steps <= {-1, 1} or counts[-1:] != (len(end.consumers.get(subscription, ())),):
            yield f"{end.layout.topic}: consumers of {subscription} were announced as {_shortened(counts)}"


def _shortened(numbers: Sequence[int]) -> str:
    return f"{list(numbers[:40])}{' …' if len(numbers) > 40 else ''}"
