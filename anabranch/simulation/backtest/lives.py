"""Lives of segments from the recorded layouts: their hashes over time, and the splits and merges.

Stage: under `demand` and `comparison`. Pure. Instants are milliseconds since 1970, of the job's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from anabranch.simulation.shadow.sides import actions_in
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import compare_lives


class Announced(NamedTuple):
    """Layout as the job accepted it."""

    at: int
    layout: SegmentLayout
    decision: str | None = None
    """The decision that led to it, if one did."""


class Life(NamedTuple):
    """An active segment: hashes `start` to `end`, inclusive, from `begins` until before `ends`."""

    segment: int
    start: int
    end: int
    begins: int
    ends: int


class Action(NamedTuple):
    """A split, a merge or a rebucket of the hashes `start` to `end`, inclusive."""

    at: int
    kind: str
    start: int
    end: int
    decision: str | None = None
    """Of one on record: the decision that led to it, if its layout says one."""
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    """Of one on record: segments that were sealed, and that were made."""


def lives_of(announced: Sequence[Announced], ends: int) -> list[Life]:
    """Return the lives of all segments active before `ends`, by their beginning; `announced` ascending."""
    known: dict[int, Life] = {}
    found: list[Life] = []
    for at, layout, _ in announced:
        active = {one.segment_id: one for one in layout.active}
        for gone in [one for one in known if one not in active]:
            found.append(known.pop(gone)._replace(ends=at))
        for segment, one in active.items():
            if segment not in known:
                known[segment] = Life(segment, one.start, one.end, at, ends)
    found += known.values()
    found.sort(key=lambda one: (one.begins, one.start))
    return [one for one in found if one.begins < one.ends]


def actions_of(announced: Sequence[Announced]) -> list[Action]:
    """Return every split, merge and rebucket between the first layout and the last, in order."""
    found: list[Action] = []
    for (_, before, _), (at, after, decision) in pairwise(announced):
        shown = sorted(actions_in(after, before), key=lambda one: one[2])
        for kind, parents, children, _ in shown:
            if children[0] < before.next_segment_id:
                continue
            made = [after.segments[one] for one in children]
            start, end = min(one.start for one in made), max(one.end for one in made)
            found.append(Action(at, kind, start, end, decision, parents, children))
    return found


class Told(NamedTuple):
    """Announced layout, with the instants that separate topics of one name."""

    announced: Announced
    is_deletion: bool
    said_at: int
    """Instant of the announcement, by its sender's clock."""
    created_at: int | None = None
    """Beginning of this life of the topic, if announced."""


class TopicLife(NamedTuple):
    """Layouts of one of the topics that had a name, in order."""

    layouts: list[Announced]
    after: int
    """End of the life before it: nothing earlier belongs to this one."""
    ends: int | None
    """Deletion, or creation of the next life; None: it still exists."""


def topic_lives(told: Sequence[Told]) -> list[TopicLife]:
    """Return the lives of the topics that had one name, ascending.

    They are separated as by the job (`engine.autoscale.lives`). Late announcements of an earlier life, or of an earlier
    layout, are left out.
    """
    found: list[TopicLife] = []
    layouts: list[Announced] = []
    created_at: int | None = None
    after, ended = 0, None
    for one in told:
        if _is_earlier(one, ended) or (layouts and (order := _order(layouts[-1], created_at, one)) < 0):
            continue
        is_later = bool(layouts) and order > 0
        if layouts and (is_later or one.is_deletion):
            found.append(TopicLife(layouts, after, one.announced.at))
            layouts, after = [], one.announced.at
        if one.is_deletion:
            created_at, ended = None, (one.said_at, one.created_at if one.created_at is not None else created_at)
            continue
        created_at = one.created_at if is_later or one.created_at is not None else created_at
        if not layouts or one.announced.layout.epoch >= layouts[-1].layout.epoch:
            layouts.append(one.announced)
    if layouts:
        found.append(TopicLife(layouts, after, None))
    return found


def _is_earlier(one: Told, ended: tuple[int, int | None] | None) -> bool:
    """Return True if an announcement belongs to a life that was deleted.

    `ended`: the instants of its deletion and, if known, its creation.
    """
    if ended is None:
        return False
    if one.created_at is not None:
        return one.created_at <= (ended[0] if ended[1] is None else ended[1])
    return one.said_at <= ended[0] if one.is_deletion else one.said_at < ended[0]


def _order(known: Announced, created_at: int | None, one: Told) -> int:
    """Return 0 for an announcement of the known life, 1 for a later life, -1 for an earlier one."""
    if one.created_at is not None and created_at is not None:
        return (one.created_at > created_at) - (one.created_at < created_at)
    if one.created_at is None and created_at is not None and one.said_at < created_at:
        return -1
    return compare_lives(known.layout.segments, one.announced.layout.segments)
