"""Whole tables in memory, and the hash ranges in their JSON."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder

from lake.tables import open_table
from lake.tail import StoredRow, committed_rows
from schemas.tables.rows import Table


class WholeTables:
    """All rows of the tables of a lake, each table read once."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._rows: dict[str, list[StoredRow]] = {}
        self._committed: dict[str, list[StoredRow]] = {}

    def rows(self, table: Table) -> list[StoredRow]:
        """Return all rows of the newest version, unordered; none when the table does not exist."""
        if table.name not in self._rows:
            opened = open_table(self._lake, table)
            self._rows[table.name] = (
                []
                if opened is None
                else pa.table(QueryBuilder().register("t", opened).execute("SELECT * FROM t").read_all()).to_pylist()
            )
        return self._rows[table.name]

    def committed(self, table: Table) -> list[StoredRow]:
        """Return all rows still in the log, in commit order, with `lake.tail.COMMITTED_AT`."""
        if table.name not in self._committed:
            opened = open_table(self._lake, table)
            self._committed[table.name] = [] if opened is None else committed_rows(opened, 0)
        return self._committed[table.name]

    def rows_and_removed(self, table: Table) -> list[StoredRow]:
        """Return the newest version's rows and those in the log (removed by retention), some of them twice."""
        return [*self.rows(table), *self.committed(table)]


def active_ranges(layout: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Return active segments' inclusive hash ranges by id, of a `ScalableTopicMetadata` in JSON."""
    ranges = {
        segment["segmentId"]: (segment["hashRange"]["start"], segment["hashRange"]["end"])
        for segment in layout["segments"].values()
        if segment["state"] == "ACTIVE"
    }
    return dict(sorted(ranges.items(), key=lambda item: item[1]))
