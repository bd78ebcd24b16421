"""A small table that several processes replace as a whole, by compare and swap.

Stage: under `anabranch.executor.shards`, which writes it; status and page read it. Each replacement takes the next
number, as a Delta app transaction. Of two concurrent ones one conflicts, and reads again.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from lake.files import read_table
from lake.tables import HOOKS, OpenTable, make_folder

EXECUTORS = "executors"
"""Folder of the register of executors: one row per executor; it holds no data rows."""
APP = "anabranch-register"
"""Name of the number in the table's log."""
CLEAN_EVERY = 100
"""Replacements between two removals of unused files and old commits."""
_PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours", "delta.checkpointInterval": "50"}


class Raced(RuntimeError):
    """Another process has replaced the table meanwhile: read again."""


class TableRegister:
    """The table in a folder of the lake, created if missing. For one thread."""

    def __init__(self, lake: str, folder: str, schema: pa.Schema) -> None:
        """Open the table. Raises what Delta raises."""
        path = f"{lake.rstrip('/')}/{folder}"
        make_folder(path)
        self._schema = schema
        self._open = OpenTable(DeltaTable.create(path, schema=schema, mode="ignore", configuration=_PROPERTIES))
        self._number, self._rows, self._version = 0, list[dict[str, Any]](), -1

    def read(self) -> tuple[int, list[dict[str, Any]]]:
        """Return its number, starting from 0, and its rows. Raises `DeltaError` or `OSError`."""
        table = self._open.newest()
        if table.version() != self._version:
            self._rows = read_table(table).to_pylist()
            self._number = self._open.transactions_as_read(APP)[0] or 0
            self._version = table.version()
        return self._number, self._rows

    def replace(self, rows: Sequence[dict[str, Any]]) -> int:
        """Replace the rows of the last `read` and return the new number.

        Raises `Raced`; or `DeltaError` or `OSError`, in which case the replacement may still have happened.
        """
        number = self._number + 1
        try:
            with self._open.committing({APP: number}) as properties:
                write_deltalake(
                    self._open.table,
                    pa.Table.from_pylist(list(rows), self._schema),
                    mode="overwrite",
                    commit_properties=properties,
                    post_commithook_properties=HOOKS,
                )
        except CommitFailedError as error:
            raise Raced(str(error)) from error
        if self._open.table.version() == self._version + 1:
            # Otherwise others have committed as well: read again.
            self._number, self._rows, self._version = number, list(rows), self._version + 1
        if number % CLEAN_EVERY == 0:
            with suppress(DeltaError, OSError):
                self._open.table.cleanup_metadata()
                self._open.table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
        return number


def read_register(lake: str, folder: str) -> list[dict[str, Any]]:
    """Return the rows of a register; none if it is missing. Raises `DeltaError` or `OSError`."""
    path = f"{lake.rstrip('/')}/{folder}"
    if not DeltaTable.is_deltatable(path):
        return []
    rows: list[dict[str, Any]] = read_table(DeltaTable(path)).to_pylist()
    return rows
