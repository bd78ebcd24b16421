"""A small table that several processes replace as a whole: who read it last and nothing since, may (compare and swap).

Stage: under `executor.shards`. Each replacement takes the next number, as a Delta app transaction. Of two at once one
conflicts, and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from lake.reading import read_table
from lake.tables import OpenTable, make_folder

EXECUTORS = "executors"
"""The folder of the register of executors: one row an executor; no table of rows that count."""
REGISTERS = (EXECUTORS,)
"""All of them, each by its folder in the lake."""
APP = "anabranch-register"
"""Names the numbers in the table's log."""
CLEAN_EVERY = 100
"""Replacements between two removals of files that nobody reads any more."""
_PROPERTIES = {"delta.logRetentionDuration": "interval 1 hours", "delta.checkpointInterval": "50"}


class Raced(RuntimeError):
    """Somebody else has replaced it meanwhile: look again."""


class Register:
    """The table in a folder of the lake, made if it is missing. One thread uses it."""

    def __init__(self, lake: str, folder: str, schema: pa.Schema) -> None:
        """Raises what Delta raises."""
        path = f"{lake.rstrip('/')}/{folder}"
        make_folder(path)
        self._schema = schema
        self._open = OpenTable(DeltaTable.create(path, schema=schema, mode="ignore", configuration=_PROPERTIES))
        self._number, self._rows, self._version = 0, list[dict[str, Any]](), -1

    def read(self) -> tuple[int, list[dict[str, Any]]]:
        """Its number, from 0, and its rows. Raises `DeltaError` or `OSError`."""
        table = self._open.newest()
        if table.version() != self._version:
            self._rows = read_table(table).to_pylist()
            self._number = table.transaction_version(APP) or 0
            self._version = table.version()
        return self._number, self._rows

    def replace(self, rows: Sequence[dict[str, Any]]) -> int:
        """Replaces what the last `read` gave; the new number. Raises `Raced`, or `DeltaError` or `OSError`: then it
        may have been replaced all the same."""
        number = self._number + 1
        try:
            write_deltalake(
                self._open.table,
                pa.Table.from_pylist(list(rows), self._schema),
                mode="overwrite",
                commit_properties=CommitProperties(app_transactions=[Transaction(APP, number)]),
            )
        except CommitFailedError as error:
            raise Raced(str(error)) from error
        if number % CLEAN_EVERY == 0:
            with suppress(DeltaError, OSError):
                self._open.table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
        return number


def registers(lake: str) -> dict[str, str]:
    """The registers that a lake has, by name, and where they are."""
    places = {folder: f"{lake.rstrip('/')}/{folder}" for folder in REGISTERS}
    return {folder: path for folder, path in places.items() if DeltaTable.is_deltatable(path)}


def read_register(lake: str, folder: str) -> list[dict[str, Any]]:
    """The rows of a register, for whoever only looks; none when there is none. Raises `DeltaError` or `OSError`."""
    path = f"{lake.rstrip('/')}/{folder}"
    if not DeltaTable.is_deltatable(path):
        return []
    rows: list[dict[str, Any]] = read_table(DeltaTable(path)).to_pylist()
    return rows
