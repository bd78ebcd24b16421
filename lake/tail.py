"""Readers of committed rows that follow a table by version, through delta-rs' change data feed.

Stage: the read end of every table: the executor follows `decisions` with it, page and screen follow all tables that
they show (`anabranch.history.live`). Reading a table without changes costs a millisecond, whatever its history.
"""

import logging
import re
from collections.abc import Container, Iterator, Sequence, Set
from datetime import timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.files import read_table
from lake.tables import OpenTable, open_table
from schemas.tables.rows import Table

log = logging.getLogger(__name__)

COMMITTED_AT = "_commit_timestamp"
"""Column of rows from the change data feed: Delta's commit time, an aware UTC datetime."""

BACKLOG_VERSIONS = 3000
"""Versions that a tail reads back initially: a second of reading."""

_ADDED = ["_change_type", "_commit_version", COMMITTED_AT]
"""Columns added by a change data feed."""

_NO_SUCH_VERSION = "Invalid table version"
_NO_SUCH_FILE = re.compile(r"Object at location .* not found", re.DOTALL)

StoredRow = dict[str, Any]
"""A row as it was read: column to value."""


class VersionUnavailable(OSError):
    """A version can no longer be read from the log.

    Its retention has passed, or a compacted file was removed by `lake vacuum`. The commit is history; its rows are
    still in the table.
    """


class Tail:
    """Follower of one table of the lake: each `read` returns the rows committed since the previous one.

    When there is no version to continue from, at the first read or after `VersionUnavailable`, it catches up by reading
    some versions back, or by scanning the whole table.
    """

    def __init__(
        self,
        lake: str,
        table: Table,
        columns: Sequence[str] = (),
        order: Sequence[str] = (),
        backlog: int | None = BACKLOG_VERSIONS,
        where: str | None = None,
    ) -> None:
        """Create a tail of `columns` (all when empty); rows of one commit are sorted by `order`.

        `backlog`: versions to read back when catching up; None: scan the whole table. `where`: an SQL condition on
        followed rows; a scan ignores it.
        """
        self._lake, self._table, self._backlog, self._where = lake, table, backlog, where
        self.scanned = False
        """True if the last `read` scanned the whole table."""
        self._columns, self._order = tuple(columns or table.row.model_fields), tuple(order)
        self._open: OpenTable | None = None
        self._next: int | None = None

    @property
    def position(self) -> int:
        """The version with which the next `read` begins; 0 before the first."""
        return self._next or 0

    def newest_values(self, *by: str) -> list[Any]:
        """Return the first column of the newest row of each combination of `by`, over the whole table.

        Newest by the first column of `order`. Raises `DeltaError` or `OSError`.
        """
        table, identity, time_column = self._current_table(), self._columns[0], self._order[0]
        if table is None:
            return []
        rows = read_table(table, [identity, *by, time_column])
        newest = rows.group_by(list(by)).aggregate([(time_column, "max")]).rename_columns([*by, time_column])
        ids: list[Any] = rows.join(newest, [*by, time_column], join_type="inner")[identity].to_pylist()
        return ids

    def matching(self, filters: list[tuple[str, str, Any]]) -> list[StoredRow]:
        """Return all rows that pass `filters` (as of pyarrow), unordered. Raises `DeltaError` or `OSError`."""
        table = self._current_table()
        return [] if table is None else read_table(table, self._columns, filters).to_pylist()

    def read(self, known_ids: Container[Any] = ()) -> list[StoredRow]:
        """Return new rows, oldest first; none while the table does not exist.

        A scan skips rows whose first column is in `known_ids`. Raises `DeltaError` or `OSError` when the table cannot
        be read now; the next call then returns the same rows.
        """
        self.scanned = False
        if (table := self._current_table()) is None:
            return []
        version = table.version()
        if self._next == version + 1:
            return []
        rows = self._rows(table, version, known_ids)
        self._next = version + 1
        return rows

    def is_known_to_end(self) -> bool:
        """Return True if one request to an object store shows that `read` has no rows; False in a local lake."""
        return self._open is not None and self._next == self._open.table.version() + 1 and self._open.is_known_newest()

    def _current_table(self) -> DeltaTable | None:
        if self._open is not None:
            return self._open.newest()
        if (table := open_table(self._lake, self._table)) is not None:
            self._open = OpenTable(table)
        return table

    def _rows(self, table: DeltaTable, version: int, known_ids: Container[Any]) -> list[StoredRow]:
        if self._next is not None:
            try:
                return _read_cdf(table, self._next, version, self._columns, self._order, self._where)
            except VersionUnavailable as error:
                log.warning("%s cannot be followed from version %d: %s", self._table.name, self._next, error)
        if self._backlog is None:
            self.scanned = True
            return _scan_table(table, self._columns, self._order, known_ids)
        first = max(self._next or 0, version - self._backlog)
        return committed_rows(table, first, version, self._columns, self._order, self._where)


def committed_rows(
    table: DeltaTable,
    first: int,
    last: int | None = None,
    columns: Sequence[str] = (),
    order: Sequence[str] = (),
    where: str | None = None,
) -> list[StoredRow]:
    """Return the rows appended by versions `first..last`, in commit order, with `COMMITTED_AT`.

    Skips versions that are no longer available. `where` is an SQL condition. Raises `DeltaError`.
    """
    newest = table.version() if last is None else last
    if first > newest:
        return []
    try:
        return _read_cdf(table, first, newest, columns, order, where)
    except VersionUnavailable:
        start = _first_available(table, first, newest)
        return [] if start > newest else _read_cdf(table, start, newest, columns, order, where)


def newest_commit(table: DeltaTable, column: str, value: int) -> Iterator[pa.RecordBatch] | None:
    """Yield the rows of the newest commit that appended rows with a value in a column.

    Without the columns that the feed adds. None: the log no longer reaches back to it. Raises `DeltaError`.
    """
    newest, span = table.version(), 16
    while True:
        first = max(0, newest - span)
        try:
            changes = _read_changes(table, first, newest, f"{column} = {value}", [column, "_commit_version"])
        except VersionUnavailable:
            return None
        if changes.num_rows or not first:
            break
        span *= 8
    if not changes.num_rows:
        return None
    version = max(changes["_commit_version"].to_pylist())
    rows = table.load_cdf(starting_version=version, ending_version=version, predicate=f"{column} = {value}")
    return (batch.drop_columns(_ADDED) for batch in pa.RecordBatchReader.from_stream(rows))


def newest_rows(table: DeltaTable, limit: int) -> list[StoredRow]:
    """Return the `limit` rows committed last, oldest first."""
    newest, span = table.version(), max(16, limit)
    while True:
        rows = committed_rows(table, max(0, newest - span), newest)
        if len(rows) >= limit or span > newest:
            return rows[-limit:] if limit else []
        span *= 8


def _read_cdf(
    table: DeltaTable,
    first: int,
    last: int,
    columns: Sequence[str] = (),
    order: Sequence[str] = (),
    where: str | None = None,
) -> list[StoredRow]:
    changes = _read_changes(table, first, last, where).drop_columns(["_change_type"])
    if columns:
        # Older lakes lack new columns until a newer job opens them.
        there = [name for name in columns if name in changes.column_names]
        changes = changes.select([*there, "_commit_version", COMMITTED_AT])
    rows: list[StoredRow] = changes.to_pylist()
    rows.sort(key=lambda row: [row[column] for column in ("_commit_version", *order)])
    for row in rows:
        del row["_commit_version"]
        row[COMMITTED_AT] = row[COMMITTED_AT].replace(tzinfo=timezone.utc)
    return rows


def _read_changes(
    table: DeltaTable, first: int, last: int, where: str | None, columns: list[str] | None = None
) -> pa.Table:
    """Return the changes of versions `first..last`. Raises `VersionUnavailable` and `DeltaError`."""
    try:
        # Not allow_out_of_range: it returns no rows at all if the first version is missing.
        return pa.table(table.load_cdf(starting_version=first, ending_version=last, predicate=where, columns=columns))
    except DeltaError as error:
        raise (VersionUnavailable if _NO_SUCH_VERSION in str(error) else DeltaError)(str(error)) from error
    except pa.ArrowInvalid as error:
        # Errors of the object store during reading arrive as this type.
        raise (VersionUnavailable if _NO_SUCH_FILE.search(str(error)) else DeltaError)(str(error)) from error


def _first_available(table: DeltaTable, first: int, last: int) -> int:
    """Return the first version from which all up to `last` are available; `last` + 1 if none is."""
    missing, available = first, last + 1
    while available - missing > 1:
        middle = (missing + available) // 2
        try:
            _read_changes(table, middle, available - 1, None, ["_commit_version"])
            available = middle
        except VersionUnavailable:
            missing = middle
    return available


def _scan_table(
    table: DeltaTable, columns: Sequence[str], order: Sequence[str], recorded: Container[Any]
) -> list[StoredRow]:
    """Return the rows of the whole table whose first column is not in `recorded`, by `order`."""
    identity = columns[0]
    named = read_table(table, [identity, "day"])
    if isinstance(recorded, Set | range):
        # Filter in columns first: nearly all of a long history is known.
        known_ids = pa.array(list(recorded), named.schema.field(identity).type)
        named = named.filter(pc.invert(pc.is_in(named[identity], value_set=known_ids)))
    days = dict(zip(named[identity].to_pylist(), named["day"].to_pylist(), strict=True))
    if not (wanted := {name: day for name, day in days.items() if name not in recorded}):
        return []
    # Filter by partition too: ids do not select files, and all columns of all past rows are large.
    here = [("day", "in", sorted(set(wanted.values()))), (identity, "in", list(wanted))]
    there = [field.name for field in table.schema().fields if field.name in columns]
    rows: list[StoredRow] = read_table(table, there, here).to_pylist()
    return sorted(rows, key=lambda row: [row[column] for column in order])
