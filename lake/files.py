"""Parquet files of a table: written where the rows are, committed by another process, read with Arrow.

Stage: under the streaming job, whose workers write and whose driver commits (`lake.tables.OpenTable.add`). A file
without a commit belongs to no table, and `lake vacuum` deletes it like files of a killed Delta writer. The footer
holds the statistics for the commit, so committing reads no rows. No import of delta-rs at the top: a process that
has it must not be forked, and workers are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from lake.pruning import files_with_guarantees
from lake.statistics import Statistics
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.dataset import Dataset

PARTITION = "day"
"""Partition column, which is in a file's path and not in the file."""
_REPEATED = (
    "topic",
    "subject",
    "reporter",
    "cause",
    "type",
    "gate",
    "trigger",
    "family",
    "reason",
    "policy_digest",
    "engine_version",
    "kafka_topic",
)
"""Columns for which a dictionary pays off."""
_READ_ROWS = 4096
_BUFFER_BYTES = 1 << 20
"""Bytes read at a time from a column."""
_STATISTICS = b"anabranch.statistics"
"""Key of the footer."""


class FileUnfit(RuntimeError):
    """A file that cannot be committed; the message says which and why."""


def table_path(lake: str | Path, table: Table) -> str:
    """Return the location of a table: a folder of its name. `lake` is a path or an object-store URL."""
    return f"{str(lake).rstrip('/')}/{table.name}"


class RowsFile:
    """Writer of a new file of a table. Its name is unique: another attempt writes another file."""

    def __init__(self, lake: str, table: Table, day: date, compression: Literal["snappy", "zstd"] = "snappy") -> None:
        """Open a file; `zstd` is slower and for files that stay. Raises `OSError`."""
        self._table, self._day, self._schema = table, day, _file_schema(table)
        self.path = f"{PARTITION}={day.isoformat()}/part-{uuid4().hex}.{compression}.parquet"
        """Path within the table's folder."""
        repeated = [name for name in _REPEATED if name in self._schema.names]
        self._sink = _open_for_writing(table_path(lake, table), self.path)
        self._statistics = Statistics(self._schema)
        short = [field.name for field in self._schema if not pa.types.is_string(field.type)]
        self._writer = pq.ParquetWriter(
            self._sink, self._schema, compression=compression, use_dictionary=repeated, write_statistics=short
        )

    def write(self, rows: pa.Table) -> None:
        """Write rows of the table, all of the file's day. Raises `OSError`."""
        if not pc.all(pc.equal(rows[PARTITION], pa.scalar(self._day, pa.date32()))).as_py():
            raise ValueError(f"rows of {self._table.name} of another day than {self._day}")
        rows = rows.select(self._schema.names).cast(self._schema)
        self._statistics.add_rows(rows)
        self._writer.write_table(rows)

    def close(self) -> None:
        """Complete the file, which is in place when this returns. Raises `OSError`."""
        self._writer.add_key_value_metadata({_STATISTICS: self._statistics.to_json()})
        self._writer.close()
        self._sink.close()


@dataclass(frozen=True)
class WrittenFile:
    """A complete file of a table, as its footer describes it."""

    lake: str
    table: Table
    path: str
    """Path within the table's folder."""
    number: int
    """Number of rows."""
    size: int
    """Bytes."""
    statistics: str
    """Statistics of the rows, built by `lake.statistics`."""

    @classmethod
    def of(cls, lake: str, table: Table, path: str) -> WrittenFile:
        """Read the footer. Raises `OSError`; `FileUnfit` if the columns differ from the table's."""
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
        """Value of the partition column."""
        return self.path.partition("/")[0].removeprefix(f"{PARTITION}=")

    def bounds(self, column: str) -> tuple[Any, Any]:
        """Return the smallest and largest value of a column in JSON form; None each if all are null."""
        statistics = json.loads(self.statistics)
        return statistics["minValues"].get(column), statistics["maxValues"].get(column)

    def chunks(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of the rows, `_READ_ROWS` at a time. Raises `OSError`."""
        whole = arrow_schema(self.table.row)
        schema = pa.schema([whole.field(name) for name in names])
        day = pa.scalar(date.fromisoformat(self.day), pa.date32())
        in_file = [name for name in names if name != PARTITION]
        with _open_for_reading(table_path(self.lake, self.table), self.path) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(_READ_ROWS, columns=in_file):
                rows = pa.Table.from_batches([batch])
                yield rows.append_column(PARTITION, pa.repeat(day, len(rows))).select(names).cast(schema)

    def discard(self) -> None:
        """Delete the uncommitted file if it is local; otherwise `anabranch lake vacuum` will."""
        if (local := _local(table_path(self.lake, self.table))) is not None:
            (local / self.path).unlink(missing_ok=True)


def rows_of(
    lake: str | Path,
    table: Table,
    path: str,
    names: Sequence[str] | None = None,
    row_groups: Sequence[int] | None = None,
    most: int = _READ_ROWS,
) -> Iterator[pa.Table]:
    """Yield the rows of any file of a table, at most `most` at a time, in this release's schema.

    `names`: only these columns; `row_groups`: only these. Optional columns that an older release did not write are
    null. A row group may be a gigabyte in compacted files, so only a part of it is in memory. Raises `OSError`.
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
                [
                    there[field.name].cast(field.type)
                    if field.name in there.column_names
                    else pa.nulls(len(batch), field.type)
                    for field in schema
                ],
                schema=schema,
            )


def write_file(lake: str, table: Table, rows: pa.Table) -> WrittenFile:
    """Write a file of rows in memory, at least one. Raises `OSError`."""
    file = RowsFile(lake, table, rows[PARTITION][0].as_py())
    file.write(rows)
    file.close()
    return WrittenFile.of(lake, table, file.path)


def modified_now() -> int:
    """Return the modification time for files of a commit, milliseconds."""
    return time.time_ns() // 1_000_000


def _file_schema(table: Table) -> pa.Schema:
    return pa.schema([field for field in arrow_schema(table.row) if field.name != PARTITION])


def is_remote(folder: str) -> bool:
    """Return True for a folder in an object store."""
    return _local(folder) is None


def _local(folder: str) -> Path | None:
    if folder.startswith("file://"):
        return Path(folder.removeprefix("file://"))
    return None if "://" in folder else Path(folder)


class _Upload:
    """Stream to an object store, for delta-rs, which takes only bytes and not Arrow's buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.closed = stream, False

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: an unclosed upload does not exist yet."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


def _open_for_writing(folder: str, path: str) -> pa.NativeFile:
    if (local := _local(folder)) is not None:
        target = local / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(target), "wb")
    from deltalake.fs import DeltaStorageHandler

    return pa.PythonFile(_Upload(DeltaStorageHandler(folder)._handler.open_output_stream(path, None)), "w")


def _open_for_reading(folder: str, path: str) -> pa.NativeFile:
    if (local := _local(folder)) is not None:
        return pa.OSFile(str(local / path))
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(folder)).open_input_file(path)


def read_table(delta: DeltaTable, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """Return rows that pass `filters` (as of pyarrow), unordered. Raises `DeltaError` or `OSError`."""
    where = None if filters is None else pq.filters_to_expression(filters)
    chosen = None if columns is None else list(columns)
    return dataset_of(delta, where).to_table(columns=chosen, filter=where)


def dataset_of(delta: DeltaTable, where: pc.Expression | None = None) -> Dataset:
    """Return a dataset of the table's files, none of them read yet; paths are within the table's folder.

    `where`: the condition that its reader will have; files that cannot fulfil it are not opened then.
    """
    from pyarrow.dataset import FileSystemDataset

    empty = delta.to_pyarrow_dataset(filesystem=_filesystem(delta), file_pruning_predicate="false")
    fragments = [
        empty.format.make_fragment(path, filesystem=empty.filesystem, partition_expression=guarantee)
        for path, guarantee in files_with_guarantees(delta, where)
    ]
    return FileSystemDataset(fragments, empty.schema, empty.format, empty.filesystem)


def _filesystem(delta: DeltaTable) -> FileSystem | None:
    """Return Arrow's file system; None for an object store, which only delta-rs can reach.

    The file system that delta-rs provides is Python, even for local files. If an Arrow reading thread still releases a
    file while Python exits, the process aborts ("terminate called without an active exception"; with pyarrow 26.0 and
    deltalake 1.6.6 in 3 of 60 programs that read one small table and ended). Arrow's own has no Python in it.
    """
    parts = urlsplit(delta.table_uri)
    return SubTreeFileSystem(url2pathname(parts.path), LocalFileSystem()) if parts.scheme in ("", "file") else None
