"""Following the tables of the lake by version, through delta-rs and its change data feed.

Stage: the read end of the local run, under `lab.view`, `lab.report` and `anabranch lake show`. A look at a table in
which nothing is new costs a millisecond, whatever its history.
"""

from __future__ import annotations

from datetime import timezone
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.tables import OpenTable, open_table
from schemas.tables import Table

COMMITTED_AT = "_commit_timestamp"
"""Column of tailed rows: when Delta committed them, an aware UTC datetime."""

BACKLOG_VERSIONS = 3000
"""Versions that a tail looks back on at first: a second of reading; older rows are history, not the present."""

Row = dict[str, Any]


def cdf_rows(table: DeltaTable, first: int, last: int | None = None) -> list[Row]:
    """The rows that versions `first..last` appended, in commit order, with `COMMITTED_AT`.

    Versions that the log has forgotten (its retention has passed) are left out. Raises `DeltaError`.
    """
    newest = table.version() if last is None else last
    if first > newest:
        return []
    try:
        found = _read_cdf(table, first, newest)
    except DeltaError:
        found = _read_cdf(table, _first_remembered(table, first, newest), newest)
    order = found.column("_commit_version").to_pylist()
    rows = found.drop_columns(["_change_type", "_commit_version"]).to_pylist()
    for row in rows:
        row[COMMITTED_AT] = row[COMMITTED_AT].replace(tzinfo=timezone.utc)
    return [rows[at] for at in sorted(range(len(rows)), key=order.__getitem__)]


def _read_cdf(table: DeltaTable, first: int, last: int) -> pa.Table:
    # Not allow_out_of_range: it answers with no rows at all when the first version is forgotten.
    return pa.table(table.load_cdf(starting_version=first, ending_version=last))


def _first_remembered(table: DeltaTable, first: int, last: int) -> int:
    forgotten, remembered = first, last
    while remembered - forgotten > 1:
        middle = (forgotten + remembered) // 2
        try:
            _read_cdf(table, middle, middle)
            remembered = middle
        except DeltaError:
            forgotten = middle
    return remembered


def newest_rows(table: DeltaTable, limit: int) -> list[Row]:
    """The `limit` rows that were committed last, oldest first."""
    newest, span = table.version(), max(16, limit)
    while True:
        rows = cdf_rows(table, max(0, newest - span), newest)
        if len(rows) >= limit or span > newest:
            return rows[-limit:] if limit else []
        span *= 8


class Tail:
    """Follows one table of the lake: each `read` gives what was committed since the one before."""

    def __init__(self, lake: str, table: Table, backlog: int = BACKLOG_VERSIONS) -> None:
        self._lake, self._table, self._backlog = lake, table, backlog
        self._open: OpenTable | None = None
        self._next = 0

    def read(self) -> list[Row]:
        """New rows in commit order; none when the table does not exist (yet) or cannot be read at the moment."""
        try:
            if self._open is None:
                table = open_table(self._lake, self._table)
                if table is None:
                    return []
                self._open = OpenTable(table)
                self._next = max(0, table.version() - self._backlog)
            else:
                table = self._open.newest()
            version = table.version()
            if version < self._next:
                return []
            rows = cdf_rows(table, self._next, version)
        except (DeltaError, OSError):
            self._open = None if self._next == 0 else self._open
            return []
        self._next = version + 1
        return rows
