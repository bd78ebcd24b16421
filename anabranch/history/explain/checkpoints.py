"""Replay of one topic up to an instant; the next one goes on from an hour before it.

Stage: under `record`. Whoever asks repeatedly keeps the checkpoints in memory, because a replay of months takes up to a
minute.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.query.wording import millis
from engine.autoscale.regrouping import regroup_topics
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import HISTORY_TABLES, Batches, columns_of, history_of, instants_of, is_since, rows_of_topic
from engine.kernel.packed import StateError, StoredPart
from engine.replay import AS_RECORDED, BucketReplay, RecordedRow
from lake.batches import read_outline
from lake.state_snapshots import RowsForgotten, horizon_for
from lake.tables import stream_columns
from schemas.kafka.delivery import Delivery
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS, EVENTS, SEGMENT_LOAD

MAX_BYTES = 100_000_000
"""Most bytes of checkpoints kept, without what Python adds; the oldest are dropped first."""


class NotOnRecord(LookupError):
    """The lake lacks the rows that an answer needs; the message says what is missing."""


class Decided(NamedTuple):
    """Last decision of the topic."""

    decision_id: str
    action: str
    segments: tuple[int, ...]
    at: int
    """Milliseconds."""


@dataclass(frozen=True)
class TopicPast:
    """Newest rows about a topic up to a batch, and what does not follow from earlier ones."""

    hold: RecordedRow | None = None
    """None: a decision came after it, or there is none."""
    held_since: int | None = None
    decision: RecordedRow | None = None
    decided: Decided | None = None
    evaluated_at: int | None = None
    """Time of the newest evaluation that is no tick of all topics, milliseconds."""
    delivery: Delivery | None = None
    """Newest report on delivery by then."""
    delivery_when_decided: Delivery | None = None
    reports: tuple[Delivery, ...] = ()
    """Both of these, and all reports that are dated later."""
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class TopicCheckpoint:
    """A topic after all batches before an instant."""

    at: datetime
    generation: str
    configured: ConfiguredPolicy
    parts: Mapping[str, StoredPart]
    of_older: frozenset[str]
    past: TopicPast

    @cached_property
    def size(self) -> int:
        """Bytes of it, about."""
        states = sum(len(part.base) for part in self.parts.values())
        return states + len(repr((self.configured, self.of_older, self.past)))


TopicCheckpoints = dict[tuple[str, str], TopicCheckpoint]
"""By lake and topic, the newest last."""


def replay_topic(
    lake: str, topic: str, until: datetime, order: Batches, configured: ConfiguredPolicy, checkpoints: TopicCheckpoints
) -> tuple[BucketReplay, TopicPast]:
    """Return a topic's state at an instant, and its past. Raises `NotOnRecord`, and as Delta.

    `order`: an outline of the batches up to then.
    """
    try:
        horizon = horizon_for(lake, order, until, [topic])
        begun: Mapping[str, StoredPart] = {} if horizon is None else regroup_topics(horizon.pieces, [topic])
    except RowsForgotten as error:
        raise NotOnRecord(str(error)) from error
    except StateError as error:
        raise NotOnRecord(f"what was kept of rows that are forgotten cannot be read: {error}") from error
    kept = checkpoints.get((lake, topic))
    if kept is not None and (kept.generation not in order.generations or kept.configured != configured):
        kept = None
    known = kept
    if known is not None and (
        known.at > until or (horizon is not None and known.at < horizon.at) or not order.is_parted(known.at)
    ):
        known = None
    since = known.at if known is not None else None if horizon is None else horizon.at
    tables = {}
    for table in HISTORY_TABLES:
        columns = columns_of(table)
        rows = [arrow_schema(table.row).empty_table().select(list(columns))]
        if table is not DEAD_LETTERS:
            where = rows_of_topic(table, topic, until)
            # Beside a horizon stand no decisions and holds.
            if since is not None and (known is not None or table in (EVENTS, SEGMENT_LOAD)):
                where = where & is_since(table, since)
            rows += stream_columns(lake, table, columns, 65_536, where)
        tables[table.name] = pa.concat_tables(rows)
    batches = read_outline(lake, columns_of(BATCHES), until, instants_of(tables))
    past = begin = TopicPast() if known is None else known.past
    doubts = list(past.doubts)
    of_older: Collection[str] = () if horizon is None else horizon.of_older
    if known is not None:
        begun, of_older = known.parts, known.of_older
    replay = BucketReplay(AS_RECORDED, configured, doubts, begun=begun, of_older=of_older)
    hour = until.replace(minute=0, second=0, microsecond=0)
    # Once a later batch is on record, all rows before it are.
    is_due = order.is_parted(hour) and order.goes_on_after(hour) and (kept is None or kept.at < hour)

    def past_at(instant: datetime) -> TopicPast:
        reports = [*_reports(tables[EVENTS.name], instant), *begin.reports]
        delivery = _newest(reports, millis(instant))
        when_decided = None if past.decided is None else _newest(reports, past.decided.at)
        needed = [report for report in reports if report.at > millis(instant) or report in (delivery, when_decided)]
        return replace(
            past, delivery=delivery, delivery_when_decided=when_decided, reports=tuple(needed), doubts=tuple(doubts)
        )

    def leave_checkpoint() -> None:
        parts = {name: StoredPart(part.pack()) for name, part in replay.parts.items()}
        checkpoints.pop((lake, topic), None)
        checkpoints[lake, topic] = TopicCheckpoint(
            hour, order.generations[-1], configured, parts, frozenset(replay.of_older), past_at(hour)
        )
        size = sum(checkpoint.size for checkpoint in checkpoints.values())
        while size > MAX_BYTES:
            size -= checkpoints.pop(next(iter(checkpoints))).size

    for batch in history_of(batches, tables).of_bucket([topic]):
        if is_due and batch.now >= millis(hour):
            leave_checkpoint()
            is_due = False
        if since is None or batch.now >= millis(since):
            due = replay.take_in(batch)
            replay.take_over(batch)
            if topic in due.by_event | due.by_tick:
                past = replace(past, evaluated_at=batch.now)
        for decision in batch.decisions:
            segments = tuple(json.loads(decision["arguments"])["segments"])
            decided = Decided(decision["decision_id"], decision["action"], segments, batch.now)
            past = replace(past, hold=None, held_since=None, decision=decision, decided=decided)
        if batch.holds and not batch.decisions:
            past = replace(past, hold=batch.holds[-1], held_since=batch.now)
    if is_due:
        leave_checkpoint()
    return replay, past_at(until)


def _reports(events: pa.Table, until: datetime) -> list[Delivery]:
    """Return the reports on a topic's delivery that were accepted up to an instant."""
    is_report = pc.and_(pc.equal(events["type"], "delivery"), pc.less_equal(events["accepted_at"], pa.scalar(until)))
    return [Delivery.model_validate_json(body) for body in events.filter(is_report)["body"].to_pylist()]


def _newest(reports: Sequence[Delivery], until: int) -> Delivery | None:
    return max((report for report in reports if report.at <= until), key=lambda report: report.at, default=None)
