"""The operator's output of one micro-batch as rows of the tables, chunk by chunk, so that any batch fits in memory.

Stage: in the sink, before `lake`. Most batches are one chunk of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pydantic_core

from engine.kernel.records import COUNTS, LOAD
from schemas.tables import HOLDS, SEGMENT_LOAD, Table
from streaming.rows import bulk_rows, hold_rows, rare_rows
from streaming.spool import SPOOLED, read_chunk, remove_chunk

MAX_CHUNK_BYTES = 16 * 1024 * 1024
"""Bodies that become one chunk of rows; one body may be larger."""


class Chunks:
    """Rows of a table, made anew each time that they are walked through; a single chunk is kept."""

    def __init__(self, bodies: Callable[[], Iterator[bytes]], rows_of: Callable[[list[bytes]], pa.Table]) -> None:
        self._bodies, self._rows_of = bodies, rows_of
        self._only: pa.Table | None = None

    def __iter__(self) -> Iterator[pa.Table]:
        if self._only is not None:
            yield self._only
            return
        made, chunk, size = 0, [], 0
        for body in self._bodies():
            if chunk and size + len(body) > MAX_CHUNK_BYTES:
                yield self._rows_of(chunk)
                made, chunk, size = made + 1, [], 0
            chunk.append(body)
            size += len(body)
        if chunk:
            rows = self._rows_of(chunk)
            if not made:
                self._only = rows
            yield rows


class BatchOutput:
    """What the operator says of one micro-batch."""

    def __init__(self, rows: pa.Table, batch_id: int) -> None:
        """`rows` are those of `engine.kernel.records.OUTPUT_DDL`, or of chunks in files (`streaming.spool`)."""
        self._batch_id = batch_id
        self._rows = list(zip(rows["kind"].to_pylist(), rows["body"].to_pylist(), strict=True))
        self.now: int | None = rows["now"][0].as_py() if rows.num_rows else None
        """The batch's time, milliseconds; None: nothing is said."""

    def bodies(self, kind: str) -> Iterator[bytes]:
        """The bodies of a kind, one in memory at a time where they are in files."""
        for of, body in self._rows:
            if of in (kind, SPOOLED + kind):
                yield read_chunk(of, body)

    def chunks(self, table: Table) -> Chunks:
        """The rows of a table."""
        if table is SEGMENT_LOAD:
            return Chunks(lambda: self.bodies(LOAD), lambda bodies: bulk_rows(bodies, self.now or 0, self._batch_id))
        if table is HOLDS:
            return Chunks(lambda: self.bodies(table.name), lambda bodies: hold_rows(bodies, self._batch_id))
        return Chunks(lambda: self.bodies(table.name), lambda bodies: rare_rows(table, bodies, self._batch_id))

    def counts(self) -> dict[str, float]:
        """The sum over all buckets of what became of their messages and samples."""
        total: dict[str, float] = {"samples_accepted": 0}
        for body in self.bodies(COUNTS):
            for counts in pydantic_core.from_json(body):
                for name, value in counts.items():
                    total[name] = total.get(name, 0) + value
        return total

    def said(self, kind: str) -> Iterator[Any]:
        """The entries of a kind whose bodies are JSON arrays."""
        for body in self.bodies(kind):
            yield from pydantic_core.from_json(body)

    def remove_files(self) -> None:
        """Removes the files of chunks: all is written."""
        for kind, body in self._rows:
            remove_chunk(kind, body)
