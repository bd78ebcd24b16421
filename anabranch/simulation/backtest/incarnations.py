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


class RecordedAction(NamedTuple):
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
    open_lives: dict[int, Life] = {}
    lives: list[Life] = []
    for announced_at, layout, _ in announced:
        active = {segment.segment_id: segment for segment in layout.active}
        for ended in [number for number in open_lives if number not in active]:
            lives.append(open_lives.pop(ended)._replace(ends=announced_at))
        for segment, shown in active.items():
            if segment not in open_lives:
                open_lives[segment] = Life(segment, shown.start, shown.end, announced_at, ends)
    lives += open_lives.values()
    lives.sort(key=lambda life: (life.begins, life.start))
    return [life for life in lives if life.begins < life.ends]


def actions_of(announced: Sequence[Announced]) -> list[RecordedAction]:
    """Return every split, merge and rebucket between the first layout and the last, in order."""
    actions: list[RecordedAction] = []
    for (_, before, _), (acted_at, after, decision) in pairwise(announced):
        shown = sorted(actions_in(after, before), key=lambda action: action[2])
        for kind, parents, children, _ in shown:
            if children[0] < before.next_segment_id:
                continue
            created = [after.segments[number] for number in children]
            start, end = min(segment.start for segment in created), max(segment.end for segment in created)
            actions.append(RecordedAction(acted_at, kind, start, end, decision, parents, children))
    return actions


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


def topic_lives(announcements: Sequence[Told]) -> list[TopicLife]:
    """Return the lives of the topics that had one name, ascending.

    They are separated as by the job (`engine.autoscale.incarnations`). Late announcements of an earlier life, or of an
    earlier layout, are left out.
    """
    lives: list[TopicLife] = []
    layouts: list[Announced] = []
    created_at: int | None = None
    after, ended = 0, None
    for announcement in announcements:
        if _is_earlier(announcement, ended) or (
            layouts and (order := _order(layouts[-1], created_at, announcement)) < 0
        ):
            continue
        is_later = bool(layouts) and order > 0
        if layouts and (is_later or announcement.is_deletion):
            lives.append(TopicLife(layouts, after, announcement.announced.at))
            layouts, after = [], announcement.announced.at
        if announcement.is_deletion:
            created_at, ended = (
                None,
                (announcement.said_at, announcement.created_at if announcement.created_at is not None else created_at),
            )
            continue
        created_at = announcement.created_at if is_later or announcement.created_at is not None else created_at
        if not layouts or announcement.announced.layout.epoch >= layouts[-1].layout.epoch:
            layouts.append(announcement.announced)
    if layouts:
        lives.append(TopicLife(layouts, after, None))
    return lives


def _is_earlier(announcement: Told, ended: tuple[int, int | None] | None) -> bool:
    """Return True if an announcement belongs to a life that was deleted.

    `ended`: the instants of its deletion and, if known, its creation.
    """
    if ended is None:
        return False
    if announcement.created_at is not None:
        return announcement.created_at <= (ended[0] if ended[1] is None else ended[1])
    return announcement.said_at <= ended[0] if announcement.is_deletion else announcement.said_at < ended[0]


def _order(newest: Announced, created_at: int | None, announcement: Told) -> int:
    """Return 0 for an announcement of the known life, 1 for a later life, -1 for an earlier one."""
    if announcement.created_at is not None and created_at is not None:
        return (announcement.created_at > created_at) - (announcement.created_at < created_at)
    if announcement.created_at is None and created_at is not None and announcement.said_at < created_at:
        return -1
    return compare_lives(newest.layout.segments, announcement.announced.layout.segments)
