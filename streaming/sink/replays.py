"""Check that a batch repeated after a crash matches its first attempt, so that lake and state agree.

Stage: in the sink, for the first batch of a start, the only possible repetition. The tables are written in turns
(`TURNS`). A table that holds the batch already is not written; one without it, though one of a later turn has it,
had no rows. The new output is compared with these before anything is written, because the new state fits no other
rows. Settings cannot cause a difference (`streaming.checkpoint.pinned`), so another release does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.tables import OpenTable
from lake.tail import newest_commit
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

TURNS = ((DECISIONS,), (HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD), (BATCHES,))
"""Order of writing: tables of one turn in parallel, the next turn after them."""
_TURN_OF = {table.name: turn for turn, tables in enumerate(TURNS) for table in tables}
_NO_MATTER = {
    EVENTS.name: frozenset(
        {
            "in_columns",
            "life",
            "epoch",
            "active_segments",
            "decision_id",
            "subscription",
            "subscription_type",
            "consumers",
        }
    )
}
"""Columns by table, besides `engine_version`, that may differ between equal attempts."""


class ReplayDiffers(RuntimeError):
    """A batch that is partly in the lake has other output now; the message says which and where."""


class RowsDigest(NamedTuple):
    """Number and digest of unordered rows."""

    number: int
    digest: int

    @classmethod
    def of(cls, table: Table, chunks: Iterable[pa.Table | pa.RecordBatch]) -> RowsDigest:
        """Compute both for any number of rows, one chunk in memory at a time, by column."""
        number = digest = 0
        no_matter = {"engine_version", *_NO_MATTER.get(table.name, ())}
        for chunk in chunks:
            rows = np.zeros(chunk.num_rows, np.uint64)
            for field in arrow_schema(table.row):
                if field.name not in no_matter:
                    rows = _mix_numbers(rows ^ _digests(chunk[field.name].cast(field.type)))
            number, digest = number + len(rows), (digest + int(rows.sum(dtype=np.uint64))) % (1 << 64)
        return cls(number, digest)


class RowsOfTable(Protocol):
    """The rows of a table in a batch."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[pa.Table]: ...


class FirstAttempt:
    """The part of a batch in the lake."""

    def __init__(self, tables: Mapping[str, OpenTable], app: str, batch_id: int) -> None:
        """Look up which tables hold the batch; `app` names the job's transactions. Raises what Delta raises."""
        self._tables, self._batch_id = tables, batch_id
        newest = {name: tables[name].newest_transaction(app) for name in _TURN_OF}
        self._held = {name for name, number in newest.items() if number is not None and number >= batch_id}
        self._last = max((_TURN_OF[name] for name in self._held), default=-1)

    def check(self, table: Table, rows: RowsOfTable) -> None:
        """Raise `ReplayDiffers` unless the rows equal those of the first attempt, if any."""
        if table.name in self._held:
            written = newest_commit(self._tables[table.name].newest(), "batch_id", self._batch_id)
            if written is None:
                return
            then, now = RowsDigest.of(table, written), RowsDigest.of(table, rows)
        elif _TURN_OF[table.name] < self._last:
            then, now = RowsDigest(0, 0), RowsDigest(len(rows), 0)
        else:
            return
        if now != then:
            subject = f"{then.number} rows, of which some" if now.number == then.number else f"{then.number} rows and"
            raise ReplayDiffers(
                f"batch {self._batch_id} was begun before and says something else now: its first attempt has written "
                f"{subject} {'differ' if now.number == then.number else f'this one has {now.number}'} in {table.name}"
            )


def _digests(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return a number for each value of a column, equal for equal values."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_floating(values.type):
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False).view(np.uint64)
    elif pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        named = values.dictionary_encode()
        digests = [_digest(value) for value in named.dictionary.cast(pa.binary()).to_pylist()]
        numbers = np.array([*digests, 0], np.uint64)[
            named.indices.fill_null(len(digests)).to_numpy(zero_copy_only=False)
        ]
    else:
        whole = values.cast(pa.int32()) if pa.types.is_date(values.type) else values
        numbers = whole.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return np.asarray(numbers + pc.is_null(values).to_numpy(zero_copy_only=False).astype(np.uint64) * _ODD)


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big")


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mix_numbers(numbers: np.ndarray) -> np.ndarray:
    """Mix numbers so that every output bit depends on all input bits (the finalizer of splitmix64)."""
    numbers = (numbers + _ODD).astype(np.uint64)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))
