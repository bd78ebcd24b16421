"""The operator's output of one micro-batch as table rows, from Spark and from files.

Stage: in the sink, before `lake`. Only the footers of files are read here, unless a caller asks for rows.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pydantic_core

from engine.kernel.records import COLUMNS, COUNTS
from lake.files import FileUnfit, WrittenFile
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import Table
from streaming.operator.outbox import FILE
from streaming.operator.rows import KIND_OF, rows_of


class TableRows:
    """The rows of one table in one batch."""

    def __init__(self, inline: pa.Table, files: list[WrittenFile]) -> None:
        self.inline, self.files = inline, files

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield the rows, with some thousands of a file in memory at a time. Raises `OSError`."""
        return self.chunks(self.inline.column_names)

    def chunks(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the same, cut to some columns; other columns of files are not read."""
        if len(self.inline):
            yield self.inline.select(names)
        for file in self.files:
            yield from file.chunks(names)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.inline) + sum(file.number for file in self.files)


class BatchOutput:
    """The operator's output of one micro-batch."""

    def __init__(self, rows: pa.Table, batch_id: int, lake: str) -> None:
        """Create it from rows of `engine.kernel.records.OUTPUT_DDL` and files (`streaming.operator.outbox`)."""
        self._batch_id, self._lake = batch_id, lake
        self._bodies: dict[str, list[bytes]] = {}
        self._made: dict[str, TableRows] = {}
        for kind, body in zip(rows["kind"].to_pylist(), rows["body"].to_pylist(), strict=True):
            self._bodies.setdefault(kind, []).append(body)
        self.now: int | None = rows["now"][0].as_py() if rows.num_rows else None
        """The batch's time, milliseconds; None if there is no output."""

    def says(self, table: Table) -> bool:
        """Return whether there is output for a table."""
        return not {KIND_OF[table.name], FILE + table.name}.isdisjoint(self._bodies)

    def rows(self, table: Table) -> TableRows:
        """Return a table's rows, built on first use by its thread. Raises `OSError` or `FileUnfit`."""
        if table.name not in self._made:
            self._made[table.name] = self._rows(table)
        return self._made[table.name]

    @cached_property
    def counts(self) -> dict[str, float]:
        """Message and sample counters, summed over all buckets."""
        total: dict[str, float] = {"samples_accepted": 0}
        for counts in self.entries_of(COUNTS):
            for name, value in counts.items():
                total[name] = total.get(name, 0) + value
        return total

    def entries_of(self, kind: str) -> Iterator[Any]:
        """Yield the entries of a kind whose bodies are JSON arrays."""
        for body in self._bodies.get(kind, ()):
            yield from pydantic_core.from_json(body)

    def batches_of(self, kind: str) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a kind that belongs to no table."""
        for body in self._bodies.get(kind, ()):
            yield pa.ipc.read_record_batch(pa.py_buffer(body), COLUMNS[kind])

    def _rows(self, table: Table) -> TableRows:
        bodies = self._bodies.get(KIND_OF[table.name])
        inline = (
            rows_of(table, bodies, self.now or 0, self._batch_id) if bodies else arrow_schema(table.row).empty_table()
        )
        paths = self._bodies.get(FILE + table.name, ())
        files = [WrittenFile.of(self._lake, table, path.decode()) for path in paths]
        for file in files:
            if file.bounds("batch_id") != (self._batch_id, self._batch_id):
                raise FileUnfit(f"{file.path} of {table.name} has rows of another batch than {self._batch_id}")
        return TableRows(inline, files)
