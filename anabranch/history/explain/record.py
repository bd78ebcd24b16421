"""Explanation of a topic at any instant: its state from the lake, decided again with all gates.

Stage: the read end, about one topic. A row of `holds` names the binding gate and its measurement; all other gates are
worked out here, from the topic's record up to that instant (`engine.replay`). A decision is explained by the snapshot
that is recorded with it.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.history.explain.application import Became, became
from anabranch.history.explain.checkpoints import Decided, NotOnRecord, TopicCheckpoints, replay_topic
from anabranch.query.wording import millis
from decisions.autoscale.answers import Answer, Hold
from decisions.autoscale.decide import decide
from decisions.autoscale.slowness import Slowness, slowness_of
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by
from engine.agreement import may_have_been, snapshot_on_record
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import Batches, columns_of
from engine.replay import RecordedRow
from lake.batches import first_batch_after, last_batch, read_outline
from lake.tables import stream_columns
from schemas.ids import EVERY_TOPIC
from schemas.tables.rows import BATCHES, EVENTS

_AFTER_RECORD = timedelta(minutes=5)
"""Longest time after the last recorded batch that can be asked about: later events may have changed everything."""
_LOOK_AROUND = timedelta(hours=1)
"""Time before and after an instant that is searched for its evaluations."""
_OUTAGE = timedelta(minutes=3)
"""Without a batch for longer than that the job was not at work: one that is has a tick each minute by default."""


class Evaluations(NamedTuple):
    """Last evaluation of the topic and its next tick, milliseconds; None: not on record."""

    last: int | None
    following: int | None


@dataclass(frozen=True)
class Explanation:
    """Input and answer of an evaluation, and its record."""

    snapshot: TopicSnapshot
    answer: Answer
    asked_at: int
    """The instant that was asked about, milliseconds."""
    decision: Decided | None
    """The decision that is explained; None: the state at that instant is, as a tick would have seen it."""
    last_decision: Decided | None
    hold: RecordedRow | None
    """The row of `holds` that stands at that instant; None: a decision came after it, or there is none."""
    held_since: int | None
    """Of that row, milliseconds."""
    evaluations: Evaluations
    slowness: Slowness
    """Verdict on why the topic is slow, at the instant that was asked about."""
    record_ends_at: int
    """Time of the last batch on record, milliseconds."""
    assumed_fresh: list[int]
    """Segments whose load is too old by what is on record, and is taken to be fresh, as what was found says: samples
    that change nothing are in no table."""
    doubts: list[str] = field(default_factory=list)
    """Rows that do not follow from earlier ones: some of those are gone."""
    silence: tuple[int, int] | None = None
    """The batches before and after that instant, milliseconds, if the job was not at work between them."""
    became: Became | None = None
    """Progress of the last decision."""


def explain(
    lake: str,
    topic: str,
    instant: datetime | None,
    configured: ConfiguredPolicy,
    outage: timedelta = _OUTAGE,
    checkpoints: TopicCheckpoints | None = None,
) -> Explanation:
    """Explain a topic's action or hold at an instant (aware; None: of the last batch on record).

    If the newest evaluation up to then, by a tick or an event, led to a decision, that decision is explained, from its
    own inputs; otherwise the state at that instant. `configured`: the job's policy now, for releases that did not
    record it. `outage`: a pause between batches longer than that, and than three minutes, counts as downtime of the
    job. `checkpoints`: those of earlier explanations, and of this one afterwards. Raises `NotOnRecord`, and what Delta
    raises.
    """
    if (ends := last_batch(lake)) is None:
        raise NotOnRecord(f"no batch of the job is on record in {lake}: is the job running, with [lake] path there?")
    until = instant or ends
    course = read_outline(lake, columns_of(BATCHES), until)
    begins = pc.min(course["batch_at"]).as_py() or first_batch_after(lake, until) or ends
    if until < begins:
        raise NotOnRecord(
            f"the record begins at {begins:%F %T} UTC, and {until:%F %T} is before that: ask for a later time, "
            "or for none, which is the end of the record"
        )
    if until > ends + _AFTER_RECORD:
        raise NotOnRecord(
            f"the record ends at {ends:%F %T} UTC, and {until:%F %T} is too long after that to be known"
            + _last_such_time(until, begins, ends)
        )
    if checkpoints is None:
        checkpoints = {}
    replay, past = replay_topic(lake, topic, until, Batches(course), configured, checkpoints)
    asked_at = millis(until)
    if (snapshot := replay.snapshot(topic, asked_at)) is None:
        raise NotOnRecord(_no_layout(lake, topic, until))
    evaluations = _evaluations(lake, topic, until, past.evaluated_at)
    explained = None
    seen = None
    decided = past.decided
    if past.decision is not None and decided is not None and decided.at >= (evaluations.last or 0):
        seen = snapshot_on_record(past.decision)
    if seen is not None:
        explained = decided
        delivery = past.delivery_when_decided
        fresh = []
    else:
        seen, delivery = _as_found(snapshot, past.hold), past.delivery
        fresh = [number for number, load in seen.loads.items() if load is not snapshot.loads[number]]
    slowness = slowness_of(replace(snapshot, delivery=past.delivery))
    seen = replace(seen, delivery=delivery)
    return Explanation(
        seen,
        decide(seen),
        asked_at,
        explained,
        decided,
        past.hold,
        past.held_since,
        evaluations,
        slowness,
        millis(ends),
        fresh,
        list(past.doubts),
        _silence(_ran_around(lake, course, until), until, max(outage, _OUTAGE)),
        None if decided is None else became(lake, decided.decision_id),
    )


def check_segment(layout: SegmentLayout, segment: int) -> None:
    """Raise `NotOnRecord`, saying what it became, unless the segment is active in the layout."""
    active = [active_segment.segment_id for active_segment in layout.active]
    if segment in active:
        return
    there = f"active are {', '.join(map(str, active[:10]))}{' and more' if len(active) > 10 else ''}"
    if (sealed := layout.segments.get(segment)) is None:
        raise NotOnRecord(f"there is no segment {segment} at that time; {there}")
    into = " and ".join(map(str, sealed.child_ids)) or "others"
    child = layout.segments.get(sealed.child_ids[0]) if sealed.child_ids else None
    change = "merged" if len(sealed.child_ids) == 1 else "split"
    if child is not None and made_by(child, layout.segments) == "rebucket":
        change = "rebucketed"
    when = datetime.fromtimestamp(sealed.sealed_at_ms / 1000, timezone.utc) if sealed.sealed_at_ms > 0 else None
    sealed_at = "" if when is None else f" at {when:%F %T} UTC"
    raise NotOnRecord(f"segment {segment} is no longer active: it was {change} into {into}{sealed_at}; {there}")


def _no_layout(lake: str, topic: str, until: datetime) -> str:
    """Return a message on why a topic has no layout at an instant."""
    where = (pc.field("subject") == topic) & (pc.field("type") == "layout")
    events = sorted(
        (row["accepted_at"], row["kafka_offset"], row["cause"])
        for rows in stream_columns(lake, EVENTS, ("accepted_at", "kafka_offset", "cause"), 65_536, where)
        for row in rows.to_pylist()
    )
    before = [layout for layout in events if layout[0] <= until]
    if before and before[-1][2] == "deleted":
        again = [announced_at for announced_at, _, _ in events if announced_at > until]
        later = f", and made again at {again[0]:%F %T} UTC" if again else ""
        return f"{topic} was deleted at {before[-1][0]:%F %T} UTC{later}; ask about a time before: --at"
    if events and not before:
        return (
            f"no layout of {topic} is on record up to {until:%F %T} UTC; the first one came at {events[0][0]:%F %T} UTC"
        )
    return (
        f"no layout of {topic} is on record up to {until:%F %T} UTC: it was not there, its name is another, or the "
        "rows of `events` that had it are gone"
    )


def _last_such_time(until: datetime, begins: datetime, ends: datetime) -> str:
    """Return an option with that time of day on the last recorded day that has it; empty: none has."""
    last = until - timedelta(days=-((ends - until) // timedelta(days=1)))
    return f"; the last {until:%T} on record is --at {last:%FT%TZ}" if last >= begins else ""


def _ran_around(lake: str, course: pa.Table, until: datetime) -> list[datetime]:
    """Return the times of the last batch up to an instant and of the first one after it."""
    around = (pc.max(course["batch_at"]).as_py(), first_batch_after(lake, until))
    return [batch_at for batch_at in around if batch_at is not None]


def _silence(ran_at: list[datetime], until: datetime, outage: timedelta) -> tuple[int, int] | None:
    """Return the batches around an instant, if they are too far apart; `ran_at`: their times, in order."""
    # At the very instant of a batch the job was at work.
    index = bisect_left(ran_at, until)
    if not 0 < index < len(ran_at) or ran_at[index] - ran_at[index - 1] <= outage:
        return None
    return millis(ran_at[index - 1]), millis(ran_at[index])


def _evaluations(lake: str, topic: str, instant: datetime, happened: int | None) -> Evaluations:
    """Return the evaluations next to an instant; `happened`: the newest one between ticks up to then."""
    begin, end = instant - _LOOK_AROUND, instant + _LOOK_AROUND
    where = (
        pc.field("subject").isin([topic, EVERY_TOPIC])
        & (pc.field("type") == "tick")
        & (pc.field("accepted_at") >= pa.scalar(begin))
        & (pc.field("accepted_at") <= pa.scalar(end))
        & (pc.field("day") >= pa.scalar(begin.date()))
        & (pc.field("day") <= pa.scalar(end.date()))
    )
    evaluated_at = sorted(
        {
            millis(accepted_at)
            for rows in stream_columns(lake, EVENTS, ("accepted_at",), 65_536, where)
            for accepted_at in rows["accepted_at"].to_pylist()
        }
    )
    index = bisect_right(evaluated_at, millis(instant))
    last = max([*evaluated_at[:index][-1:], *([] if happened is None else [happened])], default=None)
    return Evaluations(last, evaluated_at[index] if index < len(evaluated_at) else None)


def _as_found(replayed: TopicSnapshot, hold: RecordedRow | None) -> TopicSnapshot:
    """Return the snapshot that leads to the recorded gate; without such a gate, with all loads fresh."""
    candidates, _ = may_have_been(replayed)
    if hold is None:
        return candidates[0]
    for snapshot in candidates:
        answer = decide(snapshot)
        if isinstance(answer, Hold) and answer.gate.value == hold["gate"]:
            return snapshot
    return candidates[0]
