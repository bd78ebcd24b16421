"""History of one topic in a window of the lake: loads, holds, decisions with their outcomes.

Reads only the days that the window touches, and of them only that topic's rows.
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.history.picture import late_seconds
from anabranch.query.wording import millis
from lake.tables import stream_columns
from lake.tail import StoredRow
from schemas.tables.rows import BATCHES, DECISIONS, HOLDS, OUTCOMES, SEGMENT_LOAD, Table

Rates = tuple[float, float, float, float]
_LOOK_BACK = timedelta(hours=6)
"""Before the window, for the load and the hold that still stand when it begins."""
CELLS = 1_000
"""Steps of a window, of each of which a segment has one sample: months take no more memory than minutes."""
MAX_SILENCES_WINDOW = timedelta(days=1)
"""Longest window that is searched for pauses of the job: a row for each of its batches is read."""
_MANY = 100_000
"""Rows that are held before they are brought down to that."""
_RATES = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")


class Sample(NamedTuple):
    """Largest rates of a segment's accepted records in a step; `at`: the newest's time, milliseconds."""

    at: int
    rates: Rates


@dataclass(frozen=True)
class HoldSpan:
    """A hold, until the next one or a decision; milliseconds."""

    gate: str
    since: int
    until: int
    measured: float | None
    limit: float | None


@dataclass(frozen=True)
class DecisionMark:
    """A decision of the window or of the hours before it, and the status of its outcome."""

    decision_id: str
    action: str
    segments: tuple[int, ...]
    reason: str
    at: int
    status: str | None


def read_loads(lake: str, topic: str, since: datetime, until: datetime) -> dict[int, list[Sample]]:
    """Return the samples of each segment, in order of time. Raises what Delta raises.

    They begin six hours before the window, for the load that still stands at its beginning.
    """
    where = _within(pc.field("topic") == topic, "accepted_at", since - _LOOK_BACK, until)
    step = max((until - since) // CELLS, timedelta(milliseconds=1)) // timedelta(microseconds=1)
    held: list[pa.Table] = []
    count = 0
    for rows in stream_columns(lake, SEGMENT_LOAD, ("segment_id", "accepted_at", *_RATES), 65_536, where):
        accepted_at = rows["accepted_at"].cast(pa.int64())
        held.append(_largest(rows.set_column(1, "at", accepted_at).append_column("cell", pc.divide(accepted_at, step))))
        count += len(held[-1])
        if count > _MANY:
            held = [_largest(pa.concat_tables(held))]
            count = len(held[0])
    loads: dict[int, list[Sample]] = {}
    if held:
        whole = _largest(pa.concat_tables(held))
        columns = (whole[name].to_pylist() for name in ("segment_id", "at", *_RATES))
        for segment, accepted_at, into, bytes_in, out, bytes_out in zip(*columns, strict=True):
            loads.setdefault(segment, []).append(Sample(accepted_at // 1000, (into, bytes_in, out, bytes_out)))
    for samples in loads.values():
        samples.sort()
    return loads


def _largest(rows: pa.Table) -> pa.Table:
    """Of each segment and step one row: the newest instant, and the largest of each rate."""
    names = ("at", *_RATES)
    largest = pa.TableGroupBy(rows, ["segment_id", "cell"], use_threads=False).aggregate(
        [(name, "max") for name in names]
    )
    return largest.select(["segment_id", "cell", *(f"{name}_max" for name in names)]).rename_columns(
        ["segment_id", "cell", *names]
    )


def read_holds(
    lake: str, topic: str, since: datetime, until: datetime, decided: Sequence[DecisionMark]
) -> list[HoldSpan]:
    """Return the holds, cut to the window, in order of time. Raises what Delta raises.

    Each lasts until the next hold or decision; one that began up to six hours before the window counts.
    """
    rows = _rows(lake, HOLDS, ("gate", "since", "measured", "limit"), topic, "since", since - _LOOK_BACK, until)
    rows.sort(key=lambda row: row["since"])
    turns = sorted([*(millis(row["since"]) for row in rows), *(decision.at for decision in decided), millis(until)])
    held = []
    for row in rows:
        begins = millis(row["since"])
        index = bisect_right(turns, begins)
        ends = turns[index] if index < len(turns) else millis(until)
        if ends > millis(since):
            held.append(HoldSpan(row["gate"], max(begins, millis(since)), ends, row["measured"], row["limit"]))
    return held


def read_decisions(lake: str, topic: str, since: datetime, until: datetime) -> list[DecisionMark]:
    """Return decisions of the window and six hours before it, by time. Raises Delta's errors."""
    columns = ("decision_id", "action", "arguments", "reason", "decided_at")
    rows = _rows(lake, DECISIONS, columns, topic, "decided_at", since - _LOOK_BACK, until)
    ends: dict[str, tuple[bool, datetime, str]] = {}
    now = datetime.now(timezone.utc)
    for row in _rows(lake, OUTCOMES, ("decision_id", "status", "at"), topic, "at", since - _LOOK_BACK, now):
        step = row["status"] != "intent", row["at"], row["status"]
        ends[row["decision_id"]] = max(step, ends.get(row["decision_id"], step))
    decisions = []
    for row in rows:
        segments = tuple(json.loads(row["arguments"]).get("segments", ()))
        end = ends.get(row["decision_id"])
        decisions.append(
            DecisionMark(
                row["decision_id"], row["action"], segments, row["reason"], millis(row["decided_at"]), end and end[2]
            )
        )
    return sorted(decisions, key=lambda decision: decision.at)


def read_silences(lake: str, since: datetime, until: datetime) -> list[tuple[int, int]]:
    """Return when the job was not at work, by its batches; none in windows of more than a day.

    Raises what Delta raises. The pace of the window's own batches says which pause is one.
    """
    if until - since > MAX_SILENCES_WINDOW:
        return []
    where = _within(pc.scalar(True), "committed_at", since, until)
    committed = sorted(
        instant
        for rows in stream_columns(lake, BATCHES, ("committed_at",), 65_536, where)
        for instant in rows["committed_at"].to_pylist()
    )
    limit = late_seconds(committed)
    return [
        (millis(earlier), millis(later))
        for earlier, later in pairwise(committed)
        if (later - earlier).total_seconds() > limit
    ]


def _rows(
    lake: str, table: Table, columns: tuple[str, ...], subject: str, time: str, since: datetime, until: datetime
) -> list[StoredRow]:
    where = _within(pc.field("subject") == subject, time, since, until)
    return [row for rows in stream_columns(lake, table, columns, 65_536, where) for row in rows.to_pylist()]


def _within(condition: pc.Expression, time: str, since: datetime, until: datetime) -> pc.Expression:
    return (
        condition
        & (pc.field("day") >= pa.scalar(since.date()))
        & (pc.field("day") <= pa.scalar(until.date()))
        & (pc.field(time) >= pa.scalar(since))
        & (pc.field(time) <= pa.scalar(until))
    )
