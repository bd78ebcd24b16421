"""Rows of a history, written in one pass to one file per table, from which any part can be read.

Stage: under `reading`. Memory holds some hundred thousand rows at a time. Each flush writes a batch of rows for every
part that has some; an index beside the file names the part of each batch, so a part is read without the others.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.simulation.topics.timeline import Ints
from lake.tables import open_table, stream_columns
from schemas.printable import printable
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import EVENTS, SEGMENT_LOAD, Table

MOST_TOPICS = 192
"""Topics of a part, roughly: many topics side by side make a simulation fast."""
MOST_ROWS: Mapping[Table, int] = {SEGMENT_LOAD: 6_000_000, EVENTS: 400_000}
"""Rows of a part, roughly: they are in memory together."""
ROWS, BYTES = 262_144, 64_000_000
"""Rows and bytes of a table that are buffered."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TOPIC_INDEX = "place"
"""Column with the index of a row's topic among all."""


def part_topics(lake: str, topics: int) -> int:
    """Return the number of topics for each part, from the number of rows in the tables."""
    size = MOST_TOPICS
    for table, most in MOST_ROWS.items():
        delta = open_table(lake, table)
        actions = [] if delta is None else pa.table(delta.get_add_actions())["num_records"].to_pylist()
        size = min(size, most * topics // max(1, sum(number or 0 for number in actions)))
    return max(1, size)


class Spill:
    """Writer of a table's rows to the file of all parts; closes it on exit."""

    def __init__(self, folder: Path, table: Table, columns: Sequence[str], parts: Sequence[Sequence[str]]) -> None:
        """`columns`: the columns to store; instants become milliseconds."""
        self._names = pa.array([name for part in parts for name in part], pa.string())
        self._part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        fields = [(name, _stored(arrow_schema(table.row).field(name).type)) for name in columns]
        self._schema = pa.schema([(TOPIC_INDEX, pa.int32()), *fields])
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(str(_file(folder, table)), self._schema, options=options)
        self._index = _index(folder, table)
        self._parts: list[int] = []
        self._buffer: list[pa.Table] = []
        self._buffered_rows = self._buffered_bytes = 0
        self.counted = 0

    def __enter__(self) -> "Spill":
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the buffered rows, and the index."""
        if kind is None:
            self._flush()
        self._writer.close()
        np.save(self._index, np.array(self._parts, np.int64))

    def to_stored(self, rows: pa.Table, topic: str) -> pa.Table:
        """Return the rows of the topics in stored form; `topic`: name of the column with the topic."""
        index = pc.index_in(rows[topic], self._names).combine_chunks()
        columns = [rows[field.name] for field in list(self._schema)[1:]]
        instants = [pa.array(millis(column)) if pa.types.is_timestamp(column.type) else column for column in columns]
        return pa.table([index, *instants], schema=self._schema).filter(index.is_valid())

    def add(self, placed: pa.Table) -> None:
        """Add rows as `to_stored` returns them."""
        if len(placed):
            self._buffer.append(placed)
            self.counted += len(placed)
            self._buffered_rows, self._buffered_bytes = (
                self._buffered_rows + len(placed),
                self._buffered_bytes + placed.nbytes,
            )
            if self._buffered_rows >= ROWS or self._buffered_bytes >= BYTES:
                self._flush()

    def _flush(self) -> None:
        if not self._buffer:
            return
        rows, self._buffer = pa.concat_tables(self._buffer).combine_chunks(), []
        self._buffered_rows = self._buffered_bytes = 0
        part = self._part_of[rows[TOPIC_INDEX].to_numpy()]
        order = np.argsort(part, kind="stable")
        rows, part = rows.take(pa.array(order)).combine_chunks(), part[order]
        numbers, starts = np.unique(part, return_index=True)
        bounds = [*starts.tolist(), len(part)]
        for number, start, end in zip(numbers.tolist(), bounds, bounds[1:], strict=False):
            for batch in rows.slice(start, end - start).to_batches():
                self._writer.write_batch(batch)
                self._parts.append(number)


def spill_table(
    lake: str,
    folder: Path,
    table: Table,
    topic: str,
    columns: Sequence[str],
    parts: Sequence[Sequence[str]],
    where: pc.Expression | None = None,
) -> int:
    """Write the rows of a table whose column `topic` names a topic of the parts; return their number."""
    with Spill(folder, table, columns, parts) as spill:
        for rows in stream_columns(lake, table, (topic, *columns), ROWS // 16, where):
            spill.add(spill.to_stored(rows, topic))
    return spill.counted


def read_part(folder: Path, table: Table, number: int) -> pa.Table:
    """Return the rows of a part, unordered."""
    reader = pa.ipc.open_file(pa.memory_map(str(_file(folder, table))))
    batches = np.flatnonzero(np.load(_index(folder, table)) == number)
    return pa.Table.from_batches([reader.get_batch(index) for index in batches.tolist()], reader.schema)


def _stored(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _file(folder: Path, table: Table) -> Path:
    return folder / f"{table.name}.arrow"


def _index(folder: Path, table: Table) -> Path:
    return folder / f"{table.name}.npy"


def millis(instants: pa.ChunkedArray) -> Ints:
    """Return instants in milliseconds since 1970."""
    milliseconds: Ints = pc.divide(instants.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1000).to_numpy()
    return milliseconds


def as_arrow(milliseconds: int) -> pa.Scalar:
    """Return an instant as an Arrow scalar."""
    return pa.scalar(EPOCH + timedelta(milliseconds=milliseconds), pa.timestamp("us", "UTC"))


def instant(moment: datetime) -> int:
    """Return milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def utc_text(milliseconds: int) -> str:
    """Return an instant for messages."""
    return printable(f"{EPOCH + timedelta(milliseconds=milliseconds):%F %T} UTC")
