"""Selection of old rows that outlive retention.

The newest row of each kind stays, as do unfinished decisions and other namespaces. Views of the kept days must
return the same rows as before. So the last hours before them stay too, for windows that reach back; and of layouts
the rows that separate the incarnations of a topic: every deletion, and the first row of the highest epoch of each
incarnation, without which a late announcement of an earlier one would look new. Of events the newest row of the
greatest sender stays, without which what a replaced process announces would look timely.

Stage: under `lake.retention`. Memory: a row for each segment, topic, incarnation or subscription that ever existed,
ids of decisions, and part of a file.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.batches import outline_of_batches
from lake.files import rows_of
from lake.tables import stream_columns
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, OUTCOMES, SEGMENT_LOAD, WAITS, Table

_NEWEST: dict[str, tuple[tuple[str, ...], str]] = {
    SEGMENT_LOAD.name: (("topic", "segment_id"), "accepted_at"),
    EVENTS.name: (("subject", "type", "cause", "subscription", "subscription_type", "life"), "accepted_at"),
    HOLDS.name: (("family", "subject"), "since"),
    DECISIONS.name: (("family", "subject"), "decided_at"),
}
"""By table: key columns, of which the newest row per combination stays, and the time column."""
THINNED = (SEGMENT_LOAD, EVENTS, HOLDS, DECISIONS, OUTCOMES, WAITS, BATCHES)
MARGIN = timedelta(hours=6)
"""Time before the kept days from which rows stay for windows of views and rules (three hours)."""
_TIMES = {**{name: time_column for name, (_, time_column) in _NEWEST.items()}, BATCHES.name: "batch_at"}
_PLACE = ("accepted_at", "kafka_partition", "kafka_offset")
"""Order in which events were ingested."""
_MANY = 1_000_000
_AT_ONCE = {SEGMENT_LOAD.name: 262_144}
"""Rows of a file processed together, where they are small."""
_FEW = 4096
_ROWS = 65_536


@dataclass(frozen=True)
class Staying:
    """Filter for the rows of a table that stay."""

    table: Table
    newest: pa.Table | None
    """Newest time by the key columns of `_NEWEST`, as text; None: the table has no newest rows."""
    decisions: pa.Array | None
    """Ids of decisions that stay with their outcomes and waits; None: unrelated table."""
    namespaces: Collection[str]
    """`tenant/namespace`: topics elsewhere stay; empty: all topics are thinned."""
    since: datetime
    """Rows from this instant on stay."""
    layouts: pa.Table | None = None
    """`_PLACE` of layouts that stay; None: another table."""
    batches: pa.Array | None = None
    """Times of batches that stay; None: another table."""

    def rows(self, lake: str, path: str) -> Iterator[pa.Table]:
        """Yield the rows of a file that stay, some at a time. Raises `OSError`."""
        times = None if self.newest is None else self.newest["newest"].unique()
        for rows in rows_of(lake, self.table, path, most=_AT_ONCE.get(self.table.name, _FEW)):
            stays = pc.invert(_is_of(rows, self.namespaces))
            if self.table is EVENTS:
                # The namespace of a policy, and of consumers written by older releases, is only in the body.
                unsaid = pc.and_(pc.equal(rows["type"], "consumer"), pc.is_null(rows["subscription"]))
                stays = pc.or_(stays, pc.or_(unsaid, pc.equal(rows["type"], "policy")))
            if self.newest is not None:
                stays = pc.or_(stays, self._is_newest(rows, times))
            if self.layouts is not None and len(self.layouts):
                stays = pc.or_(stays, _is_among(rows.select(_PLACE), self.layouts))
            if self.batches is not None:
                stays = pc.or_(stays, pc.is_in(rows["batch_at"], self.batches))
            if self.table.name in _TIMES:
                stays = pc.or_(stays, pc.greater_equal(rows[_TIMES[self.table.name]], pa.scalar(self.since)))
            if self.decisions is not None:
                stays = pc.or_(stays, pc.is_in(rows["decision_id"], self.decisions))
            chosen = rows.filter(stays)
            if len(chosen):
                yield chosen

    def _is_newest(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        """Return which rows are the newest of their kind, comparing only those with such a time."""
        keys, time_column = _NEWEST[self.table.name]
        timed = _keys_and_time(rows, keys, time_column)
        is_newest = np.asarray(pc.is_in(timed["newest"], times), np.bool_)
        is_newest[is_newest] = _is_among(timed.filter(pa.array(is_newest)), self.newest)
        return pa.array(is_newest)


def _is_among(rows: pa.Table, candidates: pa.Table) -> pa.Array:
    """Return which rows occur among others with the same columns."""
    placed = rows.append_column("place", pa.array(np.arange(len(rows))))
    is_there = np.zeros(len(rows), np.bool_)
    is_there[placed.join(candidates, rows.column_names, join_type="left semi")["place"].to_numpy()] = True
    return pa.array(is_there)


def staying_rows(
    lake: str, table: Table, paths: Sequence[str], before: date, namespaces: Collection[str], is_dry_run: bool
) -> Staying:
    """Return the filter for the files of days before `before`. Raises `DeltaError` or `OSError`.

    An outcome or a wait goes after its decision, never before: a decision without its outcome would be applied
    again. `is_dry_run`: assume that the decisions due for removal are gone.
    """
    newest = _newest_rows(lake, table, paths) if table.name in _NEWEST else None
    since = datetime.combine(before, time(), timezone.utc) - MARGIN
    stays = partial(Staying, table, newest, namespaces=namespaces, since=since)
    if table is BATCHES:
        return stays(decisions=None, batches=_batches_that_stay(lake, paths))
    if table is EVENTS:
        return stays(decisions=None, layouts=_layouts_that_stay(lake, paths))
    if table is DECISIONS or (table in (OUTCOMES, WAITS) and is_dry_run):
        return stays(decisions=_decisions_that_stay(lake, before, since))
    if table in (OUTCOMES, WAITS):
        there = [rows["decision_id"] for rows in stream_columns(lake, DECISIONS, ["decision_id"], _ROWS)]
        return stays(decisions=_ids([_NO_IDS, *there]))
    return stays(decisions=None)


def _batches_that_stay(lake: str, paths: Sequence[str]) -> pa.Array:
    """Return the times of the batches that determine the order of all others."""
    columns = ("generation", "batch_id", "batch_at")
    outlines = [arrow_schema(BATCHES.row).empty_table().select(columns)]
    for path in paths:
        for rows in rows_of(lake, BATCHES, path, columns, most=_MANY):
            outlines.append(rows)
            if sum(map(len, outlines)) > _MANY:
                outlines = [outline_of_batches(pa.concat_tables(outlines))]
    return outline_of_batches(pa.concat_tables(outlines))["batch_at"].unique()


def _layouts_that_stay(lake: str, paths: Sequence[str]) -> pa.Table:
    """Return every deletion, and the first layout of the highest epoch of each incarnation."""
    columns = ("subject", "type", "cause", "life", "epoch", "in_columns", "sender", *_PLACE)
    parts = [_lives(arrow_schema(EVENTS.row).empty_table())]
    for path in paths:
        of_file = [_layouts(rows) for rows in rows_of(lake, EVENTS, path, columns, most=_ROWS)]
        if any(rows["in_columns"].null_count for rows in of_file):
            of_file = [_layouts(rows) for rows in rows_of(lake, EVENTS, path, (*columns, "body"), most=_FEW)]
        parts += map(_lives, of_file)
    layouts = pa.concat_tables(parts).sort_by([(name, "ascending") for name in ("subject", *_PLACE)])
    if not len(layouts):
        return layouts.select(_PLACE)
    # A layout without an incarnation belongs to the one delimited by the deletions before it (`layout_spans`).
    ends = layouts["ends"].to_numpy().astype(np.int64)
    layouts = layouts.append_column("ended", pa.array(np.cumsum(ends) - ends)).append_column(
        "row", pa.array(np.arange(len(layouts)))
    )
    highest = layouts.group_by(["subject", "life", "ended"]).aggregate([("epoch", "max")])
    named = ["subject", "life", "ended", "epoch"]
    of_highest = layouts.filter(
        _is_among(layouts.select(named), highest.rename_columns({"epoch_max": "epoch"}).select(named))
    )
    first = of_highest.group_by(["subject", "life", "ended"]).aggregate([("row", "min")])["row_min"]
    stays = pc.or_(layouts["ends"], pc.is_in(layouts["row"], first.combine_chunks()))
    return layouts.filter(pc.or_(stays, _make_deletions_late(layouts))).select(_PLACE)


def _make_deletions_late(layouts: pa.Table) -> pa.Array:
    """Return which layouts have the first row of a sender, of topics that a replaced sender declared deleted."""
    topics = layouts["subject"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    senders, ranks = np.unique(layouts["sender"].to_numpy(), return_inverse=True)
    own = topics * len(senders) + ranks
    greatest = np.maximum.accumulate(own)
    is_late = (own < greatest) & (layouts["sender"].to_numpy() >= 0) & layouts["ends"].to_numpy()
    return pa.array(np.append(True, greatest[1:] > greatest[:-1]) & np.isin(topics, topics[is_late]))


def _layouts(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.equal(rows["type"], "layout"))


def _lives(layouts: pa.Table) -> pa.Table:
    """Return layouts with their position by topic, incarnation and epoch, from bodies in old rows."""
    columns = {"life": layouts["life"], "epoch": layouts["epoch"]}
    if "body" in layouts.column_names:
        is_older = pc.is_null(layouts["in_columns"])
        for name, key in (("life", "topicCreatedAt"), ("epoch", "epoch")):
            matches = pc.extract_regex(layouts["body"], rf'"{key}" *: *(?P<value>[0-9]+)')
            columns[name] = pc.if_else(is_older, pc.struct_field(matches, "value").cast(pa.int64()), columns[name])
    return pa.table(
        {
            "subject": layouts["subject"],
            **{name: pc.fill_null(values, -1) for name, values in columns.items()},
            "ends": pc.fill_null(pc.equal(layouts["cause"], "deleted"), False),
            "sender": pc.fill_null(layouts["sender"], -1),
            **{name: layouts[name] for name in _PLACE},
        }
    )


def _newest_rows(lake: str, table: Table, paths: Sequence[str]) -> pa.Table:
    keys, time_column = _NEWEST[table.name]
    columns = [*keys, time_column, *(["sender"] if table is EVENTS else [])]
    parts, waiting = [_newest(arrow_schema(table.row).empty_table(), keys, time_column)], 0
    for path in paths:
        for rows in rows_of(lake, table, path, columns, most=_ROWS):
            parts.append(_newest(rows, keys, time_column))
            waiting += len(parts[-1])
            if waiting > _MANY:
                parts, waiting = [_newest(pa.concat_tables(parts), keys, "newest")], 0
    return _newest(pa.concat_tables(parts), keys, "newest").select([*keys, "newest"])


def _newest(rows: pa.Table, keys: Sequence[str], time_column: str) -> pa.Table:
    """Return the newest time by key; of events also that of the greatest sender, who makes others late."""
    timed = _keys_and_time(rows, keys, time_column)
    if "sender" not in rows.column_names:
        best = timed.group_by(list(keys)).aggregate([("newest", "max")])
        return best.select([*keys, "newest_max"]).rename_columns([*keys, "newest"])
    timed = timed.append_column("sender", pc.fill_null(rows["sender"], -1))
    return pa.concat_tables([_last_by_key(timed, keys, order) for order in (["newest"], ["sender", "newest"])])


def _last_by_key(timed: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    ordered = timed.sort_by([(name, "ascending") for name in order]).group_by(list(keys), use_threads=False)
    last = ordered.aggregate([("newest", "last"), ("sender", "last")])
    return last.select([*keys, "newest_last", "sender_last"]).rename_columns([*keys, "newest", "sender"])


def _keys_and_time(rows: pa.Table, keys: Sequence[str], time_column: str) -> pa.Table:
    """Return the key columns as text, and the time; null is empty, as joins never match null."""
    named = {name: pc.fill_null(rows[name].cast(pa.string()), "") for name in keys}
    return pa.table({**named, "newest": rows[time_column].cast(pa.timestamp("us", tz="UTC"))})


def _decisions_that_stay(lake: str, before: date, since: datetime) -> pa.Array:
    """Return decisions from `since` on, not over by `before`, and each subject's newest old one."""
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
        stay.append(rows.filter(pc.greater_equal(rows["decided_at"], pa.scalar(since)))["decision_id"])
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
    """Return which rows may be removed: topics of these namespaces; without any, everything."""
    if not namespaces:
        return pa.chunked_array([pa.repeat(True, len(rows))])
    subject = rows["topic" if "topic" in rows.column_names else "subject"]
    is_included = pa.chunked_array([pa.repeat(False, len(rows))])
    for namespace in namespaces:
        is_included = pc.or_(is_included, pc.starts_with(subject, f"topic://{namespace}/"))
    return is_included
