"""New rows of the `decisions` table, by table version, through delta-rs.

Stage: the entrance of the executor; `loop` asks it every `executor.poll_ms`. Once at the start the whole table is
scanned for what is still open, then each look costs what was committed since. When the log no longer reaches back to
where the last look ended (its retention has passed, or the table was made again), the scan is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from executor.decision import COLUMNS
from lake.tables import OpenTable, create_table
from schemas.tables import DECISIONS

log = logging.getLogger(__name__)

Row = dict[str, Any]


class DecisionTail:
    """Follows the `decisions` table of a lake, which is made if it is missing."""

    def __init__(self, lake: str) -> None:
        self._table = OpenTable(create_table(lake, DECISIONS))
        self._next: int | None = None

    def read(self, known: Container[str]) -> list[Row]:
        """The rows since the last look with `COLUMNS`, oldest first; from a scan without those whose id is `known`.

        Raises `DeltaError` or `OSError` when the table cannot be read now; the next look then gives the same rows.
        """
        table = self._table.newest()
        version = table.version()
        if self._next is not None and version == self._next - 1:
            return []
        if self._next is None or version < self._next:
            rows = self._scan(table, known)
        else:
            try:
                rows = self._changes(table, self._next, version)
            except DeltaError as error:
                log.warning("the log of decisions does not reach back to version %d (%s): scanning", self._next, error)
                rows = self._scan(table, known)
        self._next = version + 1
        return rows

    def _changes(self, table: DeltaTable, first: int, last: int) -> list[Row]:
        # Not allow_out_of_range: it answers with no rows at all when the first version is forgotten.
        found = table.load_cdf(starting_version=first, ending_version=last)
        return sorted(
            pa.table(found).select([*COLUMNS, "_commit_version"]).to_pylist(),
            key=lambda row: (row["_commit_version"], row["batch_id"], row["seq"]),
        )

    def _scan(self, table: DeltaTable, known: Container[str]) -> list[Row]:
        named = table.to_pyarrow_table(columns=["decision_id", "day"])
        days = dict(zip(named["decision_id"].to_pylist(), named["day"].to_pylist(), strict=True))
        wanted = {decision: day for decision, day in days.items() if decision not in known}
        if not wanted:
            return []
        # By partition too: ids say nothing about files, and the inputs of all past decisions are large.
        here = [("day", "in", sorted(set(wanted.values()))), ("decision_id", "in", list(wanted))]
        found = table.to_pyarrow_table(columns=list(COLUMNS), filters=here)
        return sorted(found.to_pylist(), key=lambda row: (row["decided_at"], row["batch_id"], row["seq"]))
