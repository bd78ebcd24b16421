"""Large valid history: a topic's day as the job's engine records it, repeated for thousands of topics.

Stage: under `benchmarks.ledger`. Demand rises and falls, so that the topic splits and merges again and again; decisions
are applied as controller and executor do it. Each other topic has the same rows under its own name, with decision ids
and places in Kafka of its own: what must always hold does, and a replay finds nothing.
"""

import json
import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from anabranch.executor.autoscale.decision import read_segment_decision
from anabranch.executor.autoscale.judge import describe
from decisions.topic.layout import SegmentLayout
from lake.tables import create_lake
from schemas.ids import decision_id
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, Table
from tests.engine.records import consumers, layout, outcome, policy, stats, tick
from tests.engine.test_replay import RecordedBucket

START = int(datetime(2026, 11, 1, tzinfo=timezone.utc).timestamp() * 1000)
PERIOD = 50
"""Minutes from one rise of demand to the next."""
TEMPLATE = "topic://acme/bench/t-000000"
_OFFSETS = 1_000_000
"""Places in Kafka of one topic."""
_ROWS = 500_000
"""Of a file."""


@dataclass
class TopicDay:
    """The rows of one topic, by table; `hours` may be more than a day's."""

    hours: float
    samples_a_minute: int
    start: int = START
    """Milliseconds."""
    bucket: RecordedBucket = field(default_factory=RecordedBucket)
    steps: list[dict[str, Any]] = field(default_factory=list)
    attempts: dict[str, tuple[int, str, list[int], int, list[int]]] = field(default_factory=dict)
    """By decision id: epoch, action, segments, attempt, and when the segments were made."""

    def run(self) -> "TopicDay":
        """Minute after minute."""
        self.layout = SegmentLayout.create(2, self.start)
        wide = {"maxDagDepth": 100_000}
        self._batch(self.start, policy(wide, "acme/bench"), layout(self.layout, at=self.start, topic=TEMPLATE))
        for minute in range(1, int(self.hours * 60)):
            now = self.start + minute * 60_000
            happened = [
                stats(self._rates(minute + part / self.samples_a_minute), now - 50_000 + part * 1_000, TEMPLATE)
                for part in range(self.samples_a_minute)
            ]
            if minute % 37 == 0:
                happened.append(consumers(minute // 37 % 5, now - 5_000, topic=TEMPLATE))
            self._batch(now, *happened, tick(now))
        return self

    def _rates(self, minute: float) -> dict[int, float]:
        is_hot = minute % PERIOD < 8
        demand = (30_000.0 if is_hot else 60.0) * (1 + 0.6 * math.sin(minute * 40))
        return {segment.segment_id: demand * segment.width / 65_536 for segment in self.layout.active}

    def _batch(self, now: int, *records: Any) -> None:
        for row in self.bucket.batch(now, *records).decisions:
            self._apply(row, now)

    def _apply(self, row: dict[str, Any], now: int) -> None:
        before, segments = self.layout, json.loads(row["arguments"])["segments"]
        if row["action"] == "split":
            after = before.split_segment(segments[0], now + 1_500)
        else:
            after = before.merge_segments(*segments, now + 1_500)
        decision = read_segment_decision(row)
        for step, step_ms, seen in (("intent", now + 400, before), ("applied", now + 1_500, after)):
            when = datetime.fromtimestamp(step_ms / 1000, timezone.utc)
            self.steps.append(
                {
                    "decision_id": row["decision_id"],
                    "family": "autoscale",
                    "subject": TEMPLATE,
                    "status": step,
                    "attempt": int(step == "applied"),
                    "at": when,
                    "layout_epoch": seen.epoch,
                    "seen": json.dumps(describe(decision, seen), separators=(",", ":")),
                    "error": None,
                    "executor": "e1",
                    "mode": "act",
                    "day": when.date(),
                }
            )
        created = [before.segments[number].created_at_ms for number in segments]
        self.attempts[row["decision_id"]] = (row["layout_epoch"], row["action"], segments, 1, created)
        announcements = [layout(after, row["action"], at=now + 1_500, topic=TEMPLATE)]
        pruned = after
        for segment in after.segments.values():
            if not segment.is_active:
                pruned = pruned.prune_segment(segment.segment_id)
        announcements.append(layout(pruned, "prune", at=now + 1_600, topic=TEMPLATE))
        self.layout = pruned
        self._batch(now + 2_000, *announcements, outcome(row["decision_id"], "applied", now + 1_500, TEMPLATE))

    def rows(self, table: Table) -> pa.Table:
        """Its rows of a table."""
        return to_arrow(OUTCOMES, self.steps) if table is OUTCOMES else self.bucket.table(table)


def topic_name(number: int) -> str:
    """Of the same length each, so that sizes are alike."""
    return f"topic://acme/bench/t-{number:06}"


def write_history(lake: str, day: TopicDay, topics: int) -> dict[str, int]:
    """The lake of that many topics: rows by table."""
    tables, counted = create_lake(lake), {}
    for table in (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, OUTCOMES):
        rows, number = day.rows(table), 0
        named = "topic" if table is SEGMENT_LOAD else "subject"
        of_all = rows.filter(pc.not_equal(rows[named], TEMPLATE))
        rows = rows.filter(pc.equal(rows[named], TEMPLATE))
        a_file = max(1, _ROWS // max(1, len(rows)))
        for first in range(0, topics, a_file):
            chunk = _of_topics(rows, day, named, range(first, min(topics, first + a_file)))
            # What concerns every topic is on record once.
            chunk = pa.concat_tables([chunk, of_all] if first == 0 else [chunk])
            number += len(chunk)
            # In the order of time, as a job writes, not topic by topic.
            write_deltalake(tables[table.name], chunk.sort_by([(_TIME[table.name], "ascending")]), mode="append")
        counted[table.name] = number
    batches = _batches(day.rows(BATCHES), topics)
    write_deltalake(tables[BATCHES.name], batches, mode="append")
    return {**counted, BATCHES.name: len(batches)}


_TIME = {
    EVENTS.name: "accepted_at",
    SEGMENT_LOAD.name: "accepted_at",
    DECISIONS.name: "decided_at",
    HOLDS.name: "since",
    OUTCOMES.name: "at",
}


def _of_topics(rows: pa.Table, day: TopicDay, named: str, numbers: range) -> pa.Table:
    """The rows of many topics: those of the template with what differs put in its place."""
    indexes = pa.array(np.tile(np.arange(len(rows)), len(numbers)))
    names = pa.array([topic_name(number) for number in numbers]).take(
        pa.array(np.repeat(np.arange(len(numbers)), len(rows)))
    )
    repeated = rows.take(indexes)
    columns: dict[str, Any] = {named: names}
    index_of = {entry: position for position, entry in enumerate(day.attempts)}
    ids = pa.array([decision_id(topic_name(number), *entry) for number in numbers for entry in day.attempts.values()])
    of_topic = np.repeat(np.arange(len(numbers)) * len(index_of), len(rows))

    def ids_at(marked_texts: list[str | None]) -> pa.Array:
        """The decision of each row, by that of the template's."""
        of_row = np.tile([-1 if entry is None else index_of[entry] for entry in marked_texts], len(numbers))
        return ids.take(pa.array(of_row + of_topic, mask=of_row < 0))

    for text in ("inputs", "body"):
        if text in rows.column_names:
            columns[text] = _put(rows[text], TEMPLATE, names, indexes)
    if "body" in rows.column_names:
        bodies = rows["body"].to_pylist()
        ends = [json.loads(body).get("decisionId") for body in bodies]
        marked = pa.array(
            [b if entry is None else b.replace(entry, "\0") for b, entry in zip(bodies, ends, strict=True)]
        )
        marked_texts = _put(marked, TEMPLATE, names, indexes)
        columns["body"] = pc.if_else(
            pa.array(np.tile([entry is not None for entry in ends], len(numbers))),
            pc.binary_join(pc.split_pattern(marked_texts, "\0"), ids_at(ends).fill_null("")),
            columns["body"],
        )
    if "decision_id" in rows.column_names:
        columns["decision_id"] = ids_at(rows["decision_id"].to_pylist())
    if "kafka_offset" in rows.column_names:
        shift = pa.array(np.repeat(np.fromiter(numbers, np.int64) * _OFFSETS, len(rows)))
        columns["kafka_offset"] = pc.add(repeated["kafka_offset"].combine_chunks(), shift)
    for column, values in columns.items():
        repeated = repeated.set_column(repeated.column_names.index(column), repeated.schema.field(column), values)
    return repeated


def _put(texts: Any, pattern: str, instead: pa.Array, indexes: pa.Array) -> pa.Array:
    """Texts, repeated by place, with another name in each."""
    pieces = pc.split_pattern(texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts, pattern)
    return pc.binary_join(pieces.take(indexes), instead)


def _batches(rows: pa.Table, topics: int) -> pa.Table:
    """The batches of all topics together: each counts what it counted of one, that many times."""
    counts = (
        "messages",
        "messages_accepted",
        "messages_suppressed",
        "samples",
        "samples_accepted",
        "samples_insignificant",
        "samples_stale",
        "events",
        "decisions",
        "holds",
        "evaluations",
    )
    for name in counts:
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), pc.multiply(rows[name], topics))
    return rows
