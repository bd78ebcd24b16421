"""Lives of segments from the recorded layouts: their hashes over time, and the splits and merges.

Stage: under `demand` and `comparison`. Pure. Instants are milliseconds since 1970, of the job's clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from anabranch.simulation.shadow.lives import LifeOf, NameLives
from anabranch.simulation.shadow.sides import actions_in
from anabranch.simulation.topics.timeline import ConsumersFrom
from decisions.topic.layout import SegmentLayout


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
        for kind, parents, children, _ in sorted(actions_in(after, before), key=lambda action: action[2]):
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


class ToldConsumers(NamedTuple):
    """Announced number of consumers, with the instants that separate topics of one name."""

    change: ConsumersFrom
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
    known: NameLives
    """State of the name before this life ended."""

    def consumers(self, announcements: Iterable[ToldConsumers]) -> list[ConsumersFrom]:
        """Return the numbers of consumers that are of this life, without late ones of an earlier one."""
        return [
            announcement.change
            for announcement in announcements
            if announcement.change.at >= self.after
            and self.known.has_consumers(announcement.created_at, announcement.said_at)
        ]


def topic_lives(announcements: Sequence[Told]) -> list[TopicLife]:
    """Return the lives of the topics that had one name, ascending, without late announcements."""
    lives: list[TopicLife] = []
    layouts: list[Announced] = []
    known, after = NameLives(), 0
    for announcement in announcements:
        before, announced = replace(known), announcement.announced
        about = announced.layout.segments, announcement.created_at, announcement.said_at
        if announcement.is_deletion:
            is_news = is_other = known.follow_deletion(*about)
        else:
            life = known.follow_layout(*about)
            is_news, is_other = life is not LifeOf.EARLIER, life is LifeOf.LATER
        if not is_news:
            continue
        if layouts and is_other:
            lives.append(TopicLife(layouts, after, announced.at, before))
            layouts, after = [], announced.at
        if not announcement.is_deletion and (not layouts or announced.layout.epoch >= layouts[-1].layout.epoch):
            layouts.append(announced)
    if layouts:
        lives.append(TopicLife(layouts, after, None, known))
    return lives
