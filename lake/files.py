"""Parquet files of a table, written by the process that has the rows and committed by another.

Stage: under the streaming job, whose workers write and whose driver commits (`lake.tables.OpenTable.add`). A file that
nobody commits is in no table; `lake vacuum` deletes it like what a killed writer of Delta leaves.
What a commit says of a file stands in its footer: whoever commits reads no rows.
No import of delta-rs at the top: a process that has it must not be forked, and workers are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.statistics import Statistics
from schemas.arrow import arrow_schema
from schemas.tables import Table

PARTITION = "day"
"""The column that is in a file's path and not in the file."""
_REPEATED = ("topic", "subject", "reporter", "cause", "type", "gate", "trigger", "family", "reason", "policy_digest",
             "engine_version", "kafka_topic")  # fmt: skip
"""Columns whose values are worth a dictionary."""
_READ_ROWS = 4096
_BUFFER_BYTES = 1 << 20
"""Of a column that are read at a time."""
_STATISTICS = b"anabranch.statistics"
"""Key of the footer."""


class FileUnfit(RuntimeError):
    """A file is not one that can be committed; the message says which and why."""


def table_path(lake: str | Path, table: Table) -> str:
    """Where a table of the lake lives: a folder of its name. `lake` is a path or an object-store URL."""
    return f"{str(lake).rstrip('/')}/{table.name}"


class RowsFile:
    """A new file of a table, until it is closed. Its name is its own: another attempt writes another file."""

    def __init__(self, lake: str, table: Table, day: date, compression: Literal["snappy", "zstd"] = "snappy") -> None:
        """`zstd` takes longer and is for what is written to stay. Raises `OSError`."""
        self._table, self._day, self._schema = table, day, _file_schema(table)
        self.path = f"{PARTITION}={day.isoformat()}/part-{uuid4().hex}.{compression}.parquet"
        """Within the table's folder."""
        repeated = [name for name in _REPEATED if name in self._schema.names]
        self._sink = _open_for_writing(table_path(lake, table), self.path)
        self._statistics = Statistics(self._schema)
        short = [field.name for field in self._schema if not pa.types.is_string(field.type)]
        self._writer = pq.ParquetWriter(
            self._sink, self._schema, compression=compression, use_dictionary=repeated, write_statistics=short
        )

    def write(self, rows: pa.Table) -> None:
        """More rows of the table, all of the file's day. Raises `OSError`."""
        if not pc.all(pc.equal(rows[PARTITION], pa.scalar(self._day, pa.date32()))).as_py():
            raise ValueError(f"rows of {self._table.name} of another day than {self._day}")
        rows = rows.select(self._schema.names).cast(self._schema)
        self._statistics.take(rows)
        self._writer.write_table(rows)

    def close(self) -> None:
        """The file is whole, and at its place, when this returns. Raises `OSError`."""
        self._writer.add_key_value_metadata({_STATISTICS: self._statistics.to_json()})
        self._writer.close()
        self._sink.close()


@dataclass(frozen=True)
class WrittenFile:
    """A whole file of a table, by what its footer says."""

    lake: str
    table: Table
    path: str
    """Within the table's folder."""
    number: int
    """Of rows."""
    size: int
    """Bytes."""
    statistics: str
    """Of the rows, as `lake.statistics` makes them."""

    @classmethod
    def of(cls, lake: str, table: Table, path: str) -> WrittenFile:
        """Reads the footer. Raises `OSError`; `FileUnfit` when the file has other columns than the table's rows."""
        with _open_for_reading(table_path(lake, table), path) as source:
            size, footer = source.size(), pq.read_metadata(source)
        is_ours = _STATISTICS in (footer.metadata or {})
        if not is_ours or footer.schema.to_arrow_schema().names != _file_schema(table).names:
            raise FileUnfit(
                f"{path} of {table.name} has other columns than its rows: driver and workers run two releases"
            )
        return cls(lake, table, path, footer.num_rows, size, footer.metadata[_STATISTICS].decode())

    @property
    def day(self) -> str:
        """The value of the partition's column."""
        return self.path.partition("/")[0].removeprefix(f"{PARTITION}=")

    def bounds(self, column: str) -> tuple[Any, Any]:
        """The smallest and the largest value of a column, as in JSON; None each: all are null."""
        found = json.loads(self.statistics)
        return found["minValues"].get(column), found["maxValues"].get(column)

    def chunks(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """The rows cut to some columns, `_READ_ROWS` at a time; no other column is read. Raises `OSError`."""
        whole = arrow_schema(self.table.row)
        schema = pa.schema([whole.field(name) for name in names])
        day = pa.scalar(date.fromisoformat(self.day), pa.date32())
        in_file = [name for name in names if name != PARTITION]
        with _open_for_reading(table_path(self.lake, self.table), self.path) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(_READ_ROWS, columns=in_file):
                rows = pa.Table.from_batches([batch])
                yield rows.append_column(PARTITION, pa.repeat(day, len(rows))).select(names).cast(schema)

    def discard(self) -> None:
        """Deletes the file, which no commit has, if it is in a folder; else `anabranch lake vacuum` will."""
        if (local := _local(table_path(self.lake, self.table))) is not None:
            (local / self.path).unlink(missing_ok=True)


def rows_of(
    lake: str | Path, table: Table, path: str, names: Sequence[str] | None = None,
    row_groups: Sequence[int] | None = None, most: int = _READ_ROWS,
) -> Iterator[pa.Table]:  # fmt: skip
    """The rows of any file of a table, at most `most` at a time, as those of this release. Raises `OSError`.

    `names`: cut to these columns; `row_groups`: of these alone. Optional columns that an older release did not write
    are null. A row group may be a gigabyte, in files that others have compacted: only a part of it is in memory.
    """
    whole = arrow_schema(table.row)
    schema = whole if names is None else pa.schema([whole.field(name) for name in names])
    day = pa.scalar(date.fromisoformat(path.partition("/")[0].removeprefix(f"{PARTITION}=")), pa.date32())
    with (
        _open_for_reading(table_path(lake, table), path) as source,
        pq.ParquetFile(source, buffer_size=_BUFFER_BYTES) as file,
    ):
        named = file.schema_arrow.names
        in_file = [name for name in schema.names if name in named] or named[:1]
        for batch in file.iter_batches(most, row_groups, in_file, use_threads=False):
            there = pa.Table.from_batches([batch]).append_column(PARTITION, pa.repeat(day, len(batch)))
            yield pa.table(
                [there[field.name].cast(field.type) if field.name in there.column_names
                 else pa.nulls(len(batch), field.type) for field in schema], schema=schema,
            )  # fmt: skip


def write_file(lake: str, table: Table, rows: pa.Table) -> WrittenFile:
    """A file of rows that are all here, at least one. Raises `OSError`."""
    file = RowsFile(lake, table, rows[PARTITION][0].as_py())
    file.write(rows)
    file.close()
    return WrittenFile.of(lake, table, file.path)


def modified_now() -> int:
    """The time that a commit gives its files, milliseconds."""
    return time.time_ns() // 1_000_000


def _file_schema(table: Table) -> pa.Schema:
    return pa.schema([field for field in arrow_schema(table.row) if field.name != PARTITION])


def _local(folder: str) -> Path | None:
    if folder.startswith("file://"):
        return Path(folder.removeprefix("file://"))
    return None if "://" in folder else Path(folder)


class _Upload:
    """A stream to an object store; delta-rs takes bytes only, and Arrow would give it buffers of its own."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.closed = stream, False

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing to do: what is not closed is nowhere."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


def _open_for_writing(folder: str, path: str) -> pa.NativeFile:
    if (local := _local(folder)) is not None:
        place = local / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(place), "wb")
    from deltalake.fs import DeltaStorageHandler

    return pa.PythonFile(_Upload(DeltaStorageHandler(folder)._handler.open_output_stream(path, None)), "w")


def _open_for_reading(folder: str, path: str) -> pa.NativeFile:
    if (local := _local(folder)) is not None:
        return pa.OSFile(str(local / path))
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(folder)).open_input_file(path)
