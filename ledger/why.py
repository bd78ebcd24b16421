"""Why a topic was held, or what was decided, at any instant: its state out of the lake, decided again with all gates.

Stage: the read end, about one topic. A row of `holds` names the gate that binds and what was measured at it; all others
are worked out here, from what is on record of the topic up to that instant (`engine.replay`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from decisions.autoscale.answers import Answer, Hold
from decisions.autoscale.decide import decide
from decisions.autoscale.snapshot import TopicSnapshot
from engine.agreement import may_have_been
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import HISTORY_TABLES, columns_of, history_of, rows_of_topic
from engine.kernel.settings import EngineSettings
from engine.replay import BucketReplay, RecordedRow
from lake.tables import read_columns, stream_columns
from schemas.arrow import arrow_schema
from schemas.tables import BATCHES, DEAD_LETTERS

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class NotOnRecord(LookupError):
    """The lake cannot tell; the message says what is missing."""


@dataclass(frozen=True)
class Why:
    """What a tick at an instant would have seen and answered, and what is on record of it."""

    snapshot: TopicSnapshot
    answer: Answer
    hold: RecordedRow | None
    """The row of `holds` that stands at that instant; None: a decision came after it, or there is none."""
    held_since: int | None
    """Of that row, milliseconds."""
    assumed_fresh: list[int]
    """Segments whose load is too old by what is on record, and is taken to be fresh, as what was found says: samples
    that change nothing are in no table."""
    doubts: list[str] = field(default_factory=list)
    """What on record does not follow from what is on record before it: some of that is gone."""


_SETTINGS = EngineSettings(change_threshold=0.0, tick_ms=60_000)
"""A replay takes what was accepted as it is, and asks for no ticks."""


def why(lake: str, topic: str, at: datetime | None, configured: ConfiguredPolicy) -> Why:
    """Why a topic acts or does not at an instant (aware; None: of the last batch on record).

    `configured`: the job's policy now, for releases that did not put it on record. Raises `NotOnRecord`, and what Delta
    raises.
    """
    batches = read_columns(lake, BATCHES, columns_of(BATCHES))
    if not len(batches):
        raise NotOnRecord(f"no batch of the job is on record in {lake}")
    until = at or max(batches["batch_at"].to_pylist())
    tables = {}
    for table in HISTORY_TABLES:
        columns = columns_of(table)
        rows = [arrow_schema(table.row).empty_table().select(list(columns))]
        if table is not DEAD_LETTERS:
            rows += stream_columns(lake, table, columns, 65_536, rows_of_topic(table, topic, until))
        tables[table.name] = pa.concat_tables(rows)
    doubts: list[str] = []
    hold: RecordedRow | None = None
    held_since: int | None = None
    replay = BucketReplay(_SETTINGS, configured, doubts)
    for batch in history_of(batches, tables).of_bucket([topic]):
        replay.take(batch)
        if batch.decisions:
            hold, held_since = None, None
        elif batch.holds:
            hold, held_since = batch.holds[-1], batch.now
    snapshot = replay.snapshot(topic, (until - _EPOCH) // timedelta(milliseconds=1))
    if snapshot is None:
        raise NotOnRecord(
            f"no layout of {topic} is on record up to {until:%F %T} UTC: it was not there, its name is another, or the "
            "rows of `events` that had it are gone"
        )
    seen = _as_found(snapshot, hold)
    fresh = [number for number, load in seen.loads.items() if load is not snapshot.loads[number]]
    return Why(seen, decide(seen), hold, held_since, fresh, doubts)


def _as_found(replayed: TopicSnapshot, hold: RecordedRow | None) -> TopicSnapshot:
    """The snapshot that leads to the gate that stands on record; where none does, with all loads fresh."""
    candidates, _ = may_have_been(replayed)
    if hold is None:
        return candidates[0]
    for snapshot in candidates:
        answer = decide(snapshot)
        if isinstance(answer, Hold) and answer.gate.value == hold["gate"]:
            return snapshot
    return candidates[0]
