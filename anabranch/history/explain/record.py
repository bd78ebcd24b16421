"""Explanation of a topic at any instant: its state from the lake, decided again with all gates.

Stage: the read end, about one topic. A row of `holds` names the binding gate and its measurement; all other gates are
worked out here, from the topic's record up to that instant (`engine.replay`). A decision is explained by the snapshot
that is recorded with it.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.history.explain.application import Became, became
from anabranch.query.wording import millis
from decisions.autoscale.answers import Answer, Hold
from decisions.autoscale.decide import decide
from decisions.autoscale.slowness import Slowness, slowness_of
from decisions.autoscale.snapshot import TopicSnapshot
from decisions.topic.layout import SegmentLayout
from decisions.topic.lineage import made_by
from engine.agreement import may_have_been, snapshot_on_record
from engine.autoscale.regrouping import regroup_topics
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import (
    HISTORY_TABLES,
    Batches,
    columns_of,
    history_of,
    instants_of,
    is_since,
    rows_of_topic,
)
from engine.kernel.packed import StateError
from engine.replay import AS_RECORDED, BucketReplay, RecordedRow
from lake.batches import first_batch_after, last_batch, read_outline
from lake.state_snapshots import RowsForgotten, horizon_for
from lake.tables import stream_columns
from schemas.ids import EVERY_TOPIC
from schemas.kafka.delivery import Delivery
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS, EVENTS, SEGMENT_LOAD

_AFTER_RECORD = timedelta(minutes=5)
"""Longest time after the last recorded batch that can be asked about: later events may have changed everything."""
_LOOK_AROUND = timedelta(hours=1)
"""Time before and after an instant that is searched for its evaluations."""
_OUTAGE = timedelta(minutes=3)
"""Without a batch for longer than that the job was not at work: one that is has a tick each minute by default."""


class NotOnRecord(LookupError):
    """The lake lacks the rows that an answer needs; the message says what is missing."""


class Evaluations(NamedTuple):
    """Last evaluation of the topic and its next tick, milliseconds; None: not on record."""

    last: int | None
    following: int | None


class Decided(NamedTuple):
    """Last decision of the topic."""

    decision_id: str
    action: str
    segments: tuple[int, ...]
    at: int
    """Milliseconds."""


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
    lake: str, topic: str, instant: datetime | None, configured: ConfiguredPolicy, outage: timedelta = _OUTAGE
) -> Explanation:
    """Explain a topic's action or hold at an instant (aware; None: of the last batch on record).

    If the newest evaluation up to then, by a tick or an event, led to a decision, that decision is explained, from its
    own inputs; otherwise the state at that instant. `configured`: the job's policy now, for releases that did not
    record it. `outage`: a pause between batches longer than that, and than three minutes, counts as downtime of the
    job. Raises `NotOnRecord`, and what Delta raises.
    """
    ends = last_batch(lake)
    if ends is None:
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
    try:
        horizon = horizon_for(lake, Batches(course), until, [topic])
    except RowsForgotten as error:
        raise NotOnRecord(str(error)) from error
    tables = {}
    for table in HISTORY_TABLES:
        columns = columns_of(table)
        rows = [arrow_schema(table.row).empty_table().select(list(columns))]
        if table is not DEAD_LETTERS:
            where = rows_of_topic(table, topic, until)
            if horizon is not None and table in (EVENTS, SEGMENT_LOAD):
                where = where & is_since(table, horizon.at)
            rows += stream_columns(lake, table, columns, 65_536, where)
        tables[table.name] = pa.concat_tables(rows)
    batches = read_outline(lake, columns_of(BATCHES), until, instants_of(tables))
    doubts: list[str] = []
    hold: RecordedRow | None = None
    held_since: int | None = None
    decision: RecordedRow | None = None
    decided: Decided | None = None
    happened: int | None = None
    try:
        begun = {} if horizon is None else regroup_topics(horizon.pieces, [topic])
    except StateError as error:
        raise NotOnRecord(f"what was kept of rows that are forgotten cannot be read: {error}") from error
    replay = BucketReplay(AS_RECORDED, configured, doubts, begun=begun, of_older=horizon.of_older if horizon else ())
    for batch in history_of(batches, tables).of_bucket([topic]):
        if horizon is None or batch.now >= millis(horizon.at):
            due = replay.take_in(batch)
            replay.take_over(batch)
            if topic in due.by_event | due.by_tick:
                happened = batch.now
        for decision in batch.decisions:
            hold, held_since = None, None
            segments = tuple(json.loads(decision["arguments"])["segments"])
            decided = Decided(decision["decision_id"], decision["action"], segments, batch.now)
        if batch.holds and not batch.decisions:
            hold, held_since = batch.holds[-1], batch.now
    asked_at = millis(until)
    snapshot = replay.snapshot(topic, asked_at)
    if snapshot is None:
        raise NotOnRecord(_no_layout(lake, topic, until))
    evaluations = _evaluations(lake, topic, until, happened)
    explained = None
    seen = None
    if decision is not None and decided is not None and decided.at >= (evaluations.last or 0):
        seen = snapshot_on_record(decision)
    if seen is not None:
        explained = decided
        fresh = []
    else:
        seen = _as_found(snapshot, hold)
        fresh = [number for number, load in seen.loads.items() if load is not snapshot.loads[number]]
    slowness = slowness_of(_with_delivery(snapshot, tables[EVENTS.name]))
    seen = _with_delivery(seen, tables[EVENTS.name])
    return Explanation(
        seen,
        decide(seen),
        asked_at,
        explained,
        decided,
        hold,
        held_since,
        evaluations,
        slowness,
        millis(ends),
        fresh,
        doubts,
        _silence(_ran_around(lake, course, until), until, max(outage, _OUTAGE)),
        None if decided is None else became(lake, decided.decision_id),
    )


def _with_delivery(snapshot: TopicSnapshot, events: pa.Table) -> TopicSnapshot:
    """Return a snapshot with the newest report on the topic's delivery up to then."""
    is_report = pc.and_(pc.equal(events["type"], "delivery"), pc.equal(events["subject"], snapshot.topic))
    reports = (Delivery.model_validate_json(row["body"]) for row in events.filter(is_report).to_pylist())
    newest = max(
        (report for report in reports if report.at <= snapshot.now), key=lambda report: report.at, default=None
    )
    return replace(snapshot, delivery=newest)


def check_segment(layout: SegmentLayout, segment: int) -> None:
    """Raise `NotOnRecord`, saying what it became, unless the segment is active in the layout."""
    active = [active_segment.segment_id for active_segment in layout.active]
    if segment in active:
        return
    there = f"active are {', '.join(map(str, active[:10]))}{' and more' if len(active) > 10 else ''}"
    sealed = layout.segments.get(segment)
    if sealed is None:
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
