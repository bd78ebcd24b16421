"""History of a topic's segments from the recorded layouts: hashes of each over time, and its origin.

Stage: the read end, under `anabranch history`. The topic is a river: a segment is a *reach* of it, a split or merge a
*turn*. A layout shows sealed segments until they are pruned, so it reveals many turns that have no row of their own.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import nlargest

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.query.wording import millis
from anabranch.simulation.shadow.lives import LifeOf, NameLives
from decisions.topic.layout import SegmentLayout
from decisions.topic.segment import Segment
from lake.batches import last_batch
from lake.tables import stream_columns
from schemas.kafka.messages import LayoutEvent
from schemas.tables.rows import DECISIONS, EVENTS

LAYOUTS_BEFORE = 50
"""Layouts read from before a window: the newest of them may be a late one, of an earlier topic of the name."""


class NothingOnRecord(LookupError):
    """The lake has no layout of the topic; the message says so."""


@dataclass(frozen=True)
class Reach:
    """Segment over time. Hashes are inclusive, instants milliseconds."""

    segment_id: int
    start: int
    end: int
    begins: int
    ends: int | None
    """None: it is active still."""
    parents: tuple[int, ...] = ()
    life: int = 0
    """Which life of the topic's name it is of, from 0."""

    def is_there(self, instant: int) -> bool:
        """Return True if the segment is active at an instant; its end is excluded."""
        return self.begins <= instant and (self.ends is None or self.ends > instant)


@dataclass(frozen=True)
class Turn:
    """Change of a topic's segments at an instant (milliseconds)."""

    at: int
    kind: str
    """`created`, `split`, `merge`, `rebucket`, `deleted`, or `made` of parents that are not known any more."""
    parents: tuple[int, ...]
    children: tuple[int, ...]
    reason: str | None = None
    """Of the decision that led to it; None: somebody else did it, or it is not known."""
    decision_id: str | None = None
    life: int = 0


@dataclass(frozen=True)
class River:
    """A topic over time, oldest first."""

    topic: str
    since: int
    until: int
    reaches: Sequence[Reach]
    turns: Sequence[Turn]

    def within(self, since: int | None = None) -> "River":
        """Return the river from an instant on."""
        begin = self.since if since is None else max(since, self.since)
        return replace(
            self,
            since=begin,
            reaches=[reach for reach in self.reaches if reach.ends is None or reach.ends > begin],
            turns=[turn for turn in self.turns if turn.at >= begin],
        )

    def newest(self, ended: int) -> "River":
        """Return the end of the river in which at most `ended` segments have ended."""
        ends = nlargest(ended + 1, (reach.ends for reach in self.reaches if reach.ends is not None))
        return self.within(ends[-1]) if len(ends) > ended else self


def read_river(lake: str, topic: str, since: datetime | None = None, until: datetime | None = None) -> River:
    """Return a topic's river in a time (aware; None: to the end). Raises `NothingOnRecord`, as Delta."""
    if (last := last_batch(lake)) is None:
        raise NothingOnRecord(
            f"no batch of the job is on record in {lake}: is the job running, with [lake] path there?"
        )
    end = min(until, last) if until else last
    if since is not None and since > last:
        raise NothingOnRecord(f"the record ends at {last:%F %T} UTC, before --since {since:%F %T}")
    where = (
        (pc.field("subject") == topic) & (pc.field("type") == "layout") & (pc.field("accepted_at") <= pa.scalar(end))
    )
    if since is not None:
        where &= _begins(lake, where & (pc.field("accepted_at") <= pa.scalar(since)))
    columns = ("body", "accepted_at", "kafka_partition", "kafka_offset")
    rows = [row for rows in stream_columns(lake, EVENTS, columns, 1024, where) for row in rows.to_pylist()]
    if not rows:
        raise NothingOnRecord(f"no layout of {topic} is on record up to {end:%F %T} UTC")
    rows.sort(key=lambda row: (row["accepted_at"], row["kafka_partition"], row["kafka_offset"]))
    events = [LayoutEvent.model_validate_json(row["body"]) for row in rows]
    reasons, by_action = _decisions(lake, topic)
    return river_of(topic, events, millis(end), reasons, by_action).within(None if since is None else millis(since))


def _begins(lake: str, before: pc.Expression) -> pc.Expression:
    """Return a filter for the newest of these layouts and all later ones, so that older ones are not parsed."""
    instants = (
        instant
        for rows in stream_columns(lake, EVENTS, ("accepted_at",), 65_536, before)
        for instant in rows["accepted_at"].to_pylist()
    )
    if (begin := min(nlargest(LAYOUTS_BEFORE, instants), default=None)) is None:
        return pc.scalar(True)
    return (pc.field("accepted_at") >= pa.scalar(begin)) & (pc.field("day") >= pa.scalar(begin.date()))


Action = tuple[str, tuple[int, ...]]


def river_of(
    topic: str,
    events: Iterable[LayoutEvent],
    until: int,
    reasons: dict[str, str],
    by_action: dict[Action, list[tuple[int, str]]],
) -> River:
    """Build the river from ordered layouts, `reasons` by decision, and instants and ids `by_action`."""
    by_segment: dict[tuple[int, int], Reach] = {}
    before: dict[int, Segment] = {}
    led: dict[tuple[int, int], str] = {}
    turns: list[Turn] = []
    known = NameLives()
    life, epoch = 0, -1
    for event in events:
        layout = SegmentLayout.from_metadata(event.layout)
        about = layout.segments, event.topic_created_at, event.at
        if event.cause == "deleted":
            life_of_event = LifeOf.LATER if known.follow_deletion(*about) else LifeOf.EARLIER
        else:
            life_of_event = known.follow_layout(*about)
        if life_of_event is LifeOf.LATER:
            turns += _end_all(by_segment, life, event.at)
            life, epoch, before = life + 1, -1, {}
        if life_of_event is LifeOf.EARLIER or event.cause == "deleted" or layout.epoch < epoch:
            continue
        epoch = layout.epoch
        for number, segment in layout.segments.items():
            if (reach := by_segment.get((life, number))) is None:
                begins = segment.created_at_ms or event.at
                reach = Reach(number, segment.start, segment.end, begins, None, segment.parent_ids, life)
                if event.decision_id is not None and before:
                    led[life, number] = event.decision_id
            if reach.ends is None and not segment.is_active:
                reach = replace(
                    reach, ends=max(reach.begins, segment.sealed_at_ms if segment.sealed_at_ms > 0 else event.at)
                )
            by_segment[life, number] = reach
        for number in before.keys() - layout.segments.keys():
            reach = by_segment[life, number]
            if reach.ends is None:
                by_segment[life, number] = replace(reach, ends=event.at)
        before = dict(layout.segments)
    reaches = sorted(by_segment.values(), key=lambda stretch: (stretch.begins, stretch.life, stretch.start))
    turns += _turns(reaches, led, reasons, by_action)
    turns.sort(key=lambda turn: (turn.at, turn.life, turn.kind != "deleted", turn.children))
    return River(topic, min(stretch.begins for stretch in reaches) if reaches else until, until, reaches, turns)


def _turns(
    reaches: Sequence[Reach],
    led: dict[tuple[int, int], str],
    reasons: dict[str, str],
    by_action: dict[Action, list[tuple[int, str]]],
) -> list[Turn]:
    families: dict[tuple[int, tuple[int, ...], int], list[Reach]] = {}
    for reach in reaches:
        families.setdefault((reach.life, reach.parents, 0 if reach.parents else reach.begins), []).append(reach)
    first = {
        life: min(reach.begins for reach in reaches if reach.life == life) for life in {reach.life for reach in reaches}
    }
    ranges = {(reach.life, reach.segment_id): (reach.start, reach.end) for reach in reaches}
    turns = []
    for (life, parents, _), children in families.items():
        begun_at = min(member.begins for member in children)
        kind = {0: "created" if begun_at == first[life] else "made", 1: "split"}.get(len(parents), "merge")
        if kind == "split" and (children[0].start, children[0].end) == ranges.get((life, parents[0])):
            kind = "rebucket"
        if (decision_id := led.get((life, children[0].segment_id))) is None:
            earlier = [
                decision for decision in by_action.get((kind, tuple(sorted(parents))), ()) if decision[0] <= begun_at
            ]
            decision_id = max(earlier)[1] if earlier else None
        turns.append(
            Turn(
                begun_at,
                kind,
                parents,
                tuple(sorted(reach.segment_id for reach in children)),
                None if decision_id is None else reasons.get(decision_id),
                decision_id,
                life,
            )
        )
    return turns


def _end_all(by_segment: dict[tuple[int, int], Reach], life: int, ended_at: int) -> list[Turn]:
    """End every segment of a life; return the turn."""
    ended = [key for key, reach in by_segment.items() if key[0] == life and reach.ends is None]
    for key in ended:
        by_segment[key] = replace(by_segment[key], ends=max(ended_at, by_segment[key].begins))
    return [Turn(ended_at, "deleted", tuple(number for _, number in sorted(ended)), (), life=life)] if ended else []


def _decisions(lake: str, topic: str) -> tuple[dict[str, str], dict[Action, list[tuple[int, str]]]]:
    """Return the decisions of a topic: reasons by id, and instants and ids by action."""
    columns = ("decision_id", "action", "arguments", "reason", "decided_at")
    reasons: dict[str, str] = {}
    by_action: dict[Action, list[tuple[int, str]]] = {}
    for rows in stream_columns(lake, DECISIONS, columns, 4096, pc.field("subject") == topic):
        for row in rows.to_pylist():
            segments = tuple(sorted(json.loads(row["arguments"]).get("segments", ())))
            reasons[row["decision_id"]] = row["reason"]
            by_action.setdefault((row["action"], segments), []).append((millis(row["decided_at"]), row["decision_id"]))
    return reasons, by_action
