"""Which old rows stay when the others are forgotten: the newest of each kind, what is not over, other namespaces.

Stage: under `lake.retention`. Memory: a line for each segment, topic or subscription that ever was, ids of decisions,
and a part of a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.files import rows_of
from lake.tables import stream_columns
from schemas.arrow import arrow_schema
from schemas.tables import DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS, Table

_NEWEST: dict[str, tuple[tuple[str, ...], str]] = {
    SEGMENT_LOAD.name: (("topic", "segment_id"), "accepted_at"),
    EVENTS.name: (("subject", "type", "cause", "subscription"), "accepted_at"),
    HOLDS.name: (("family", "subject"), "since"),
    DECISIONS.name: (("family", "subject"), "decided_at"),
}
"""By table, the columns of whose every combination the newest row stays, and the time that says which that is."""
THINNED = (SEGMENT_LOAD, EVENTS, HOLDS, DECISIONS, OUTCOMES, WAITS)
_MANY = 1_000_000
_AT_ONCE = {SEGMENT_LOAD.name: 262_144}
"""Rows of a file that are looked at together, where they are small."""
_FEW = 4096
_ROWS = 65_536


@dataclass(frozen=True)
class Staying:
    """What is to stay of a table."""

    table: Table
    newest: pa.Table | None
    """By the table's columns in `_NEWEST`, as text, the newest time; None: there is no newest row."""
    decisions: pa.Array | None
    """Ids of those that stay, and whose outcomes and waits stay; None: the table has nothing to do with them."""
    namespaces: Collection[str]
    """`tenant/namespace`: topics elsewhere stay; empty: of every topic."""

    def rows(self, lake: str, path: str) -> Iterator[pa.Table]:
        """The rows of a file that stay, some at a time. Raises `OSError`."""
        times = None if self.newest is None else self.newest["newest"].unique()
        for rows in rows_of(lake, self.table, path, most=_AT_ONCE.get(self.table.name, _FEW)):
            stays = pc.invert(_is_of(rows, self.namespaces))
            if self.table is EVENTS:
                # Whose a policy is only its body says; and of consumers, as an older release wrote them.
                unsaid = pc.and_(pc.equal(rows["type"], "consumer"), pc.is_null(rows["subscription"]))
                stays = pc.or_(stays, pc.or_(unsaid, pc.equal(rows["type"], "policy")))
            if self.newest is not None:
                stays = pc.or_(stays, self._is_newest(rows, times))
            if self.decisions is not None:
                stays = pc.or_(stays, pc.is_in(rows["decision_id"], self.decisions))
            kept = rows.filter(stays)
            if len(kept):
                yield kept

    def _is_newest(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        """Which rows are the newest of their kind. Only those of such a time are compared: a join reads all kinds."""
        keys, at = _NEWEST[self.table.name]
        timed = _timed(rows, keys, at).append_column("place", pa.array(np.arange(len(rows))))
        may_be = timed.filter(pc.is_in(timed["newest"], times))
        is_newest = np.zeros(len(rows), bool)
        if len(may_be):
            found = may_be.join(self.newest, [*keys, "newest"], join_type="left semi")
            is_newest[found["place"].to_numpy()] = True
        return pa.array(is_newest)


def staying(
    lake: str, table: Table, paths: Sequence[str], before: date, namespaces: Collection[str], is_dry_run: bool
) -> Staying:  # fmt: skip
    """What is to stay of the files of days before `before`. Raises `DeltaError` or `OSError`.

    An outcome or a wait goes when its decision is gone, never before it: a decision without its end would be carried
    out again. `is_dry_run`: as if those decisions were gone that are to go.
    """
    newest = _newest_rows(lake, table, paths) if table.name in _NEWEST else None
    if table is DECISIONS or (table in (OUTCOMES, WAITS) and is_dry_run):
        return Staying(table, newest, _decisions_that_stay(lake, before), namespaces)
    if table in (OUTCOMES, WAITS):
        there = [rows["decision_id"] for rows in stream_columns(lake, DECISIONS, ["decision_id"], _ROWS)]
        return Staying(table, newest, _ids([_NO_IDS, *there]), namespaces)
    return Staying(table, newest, None, namespaces)


def _newest_rows(lake: str, table: Table, paths: Sequence[str]) -> pa.Table:
    keys, at = _NEWEST[table.name]
    found, waiting = [_newest(arrow_schema(table.row).empty_table(), keys, at)], 0
    for path in paths:
        for rows in rows_of(lake, table, path, [*keys, at], most=_ROWS):
            found.append(_newest(rows, keys, at))
            waiting += len(found[-1])
            if waiting > _MANY:
                found, waiting = [_newest(pa.concat_tables(found), keys, "newest")], 0
    return _newest(pa.concat_tables(found), keys, "newest")


def _newest(rows: pa.Table, keys: Sequence[str], at: str) -> pa.Table:
    best = _timed(rows, keys, at).group_by(list(keys)).aggregate([("newest", "max")])
    return best.select([*keys, "newest_max"]).rename_columns([*keys, "newest"])


def _timed(rows: pa.Table, keys: Sequence[str], at: str) -> pa.Table:
    """The key columns as text, and the time; null is the empty text, as a join takes no null for another."""
    named = {name: pc.fill_null(rows[name].cast(pa.string()), "") for name in keys}
    return pa.table({**named, "newest": rows[at].cast(pa.timestamp("us", tz="UTC"))})


def _decisions_that_stay(lake: str, before: date) -> pa.Array:
    """Decisions that are not over by then, and the newest old one of each subject."""
    later, ended = [_NO_IDS], [_NO_IDS]
    for table in (OUTCOMES, WAITS):
        of_table = ["decision_id", "day", "status"] if table is OUTCOMES else ["decision_id", "day"]
        for rows in stream_columns(lake, table, of_table, _ROWS):
            later.append(rows.filter(pc.greater_equal(rows["day"], pa.scalar(before)))["decision_id"])
            if table is OUTCOMES:
                ended.append(rows.filter(pc.not_equal(rows["status"], "intent"))["decision_id"])
    not_over, over = _ids(later), _ids(ended)
    stay, newest = [_NO_IDS], dict[tuple[str, str], tuple[datetime, str]]()
    columns = ["decision_id", "family", "subject", "decided_at", "day"]
    for rows in stream_columns(lake, DECISIONS, columns, _ROWS):
        stay.append(rows.filter(pc.greater_equal(rows["day"], pa.scalar(before)))["decision_id"])
        old = rows.filter(pc.less(rows["day"], pa.scalar(before)))
        is_open = pc.invert(pc.is_in(old["decision_id"], over))
        stay.append(old.filter(pc.or_(is_open, pc.is_in(old["decision_id"], not_over)))["decision_id"])
        last = old.sort_by("decided_at").group_by(["family", "subject"], use_threads=False)
        for row in last.aggregate([("decided_at", "last"), ("decision_id", "last")]).to_pylist():
            key = row["family"], row["subject"]
            newest[key] = max(newest.get(key, (_LONG_AGO, "")), (row["decided_at_last"], row["decision_id_last"]))
    return _ids([*stay, pa.chunked_array([[identity for _, identity in newest.values()]], pa.string())])


_LONG_AGO = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NO_IDS = pa.chunked_array([[]], pa.string())


def _ids(parts: Sequence[pa.ChunkedArray]) -> pa.Array:
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string()).unique()


def _is_of(rows: pa.Table, namespaces: Collection[str]) -> pa.ChunkedArray:
    """Which rows may be forgotten at all: of topics, of these namespaces; without any all, of clusters too."""
    subject = rows["topic" if "topic" in rows.column_names else "subject"]
    if not namespaces:
        return pa.chunked_array([pa.repeat(True, len(rows))])
    found = pa.chunked_array([pa.repeat(False, len(rows))])
    for namespace in namespaces:
        found = pc.or_(found, pc.starts_with(subject, f"topic://{namespace}/"))
    return found
