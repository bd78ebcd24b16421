"""A batch that is repeated after a crash has to say what its first attempt said, or lake and state would differ.

Stage: in the sink, for the first batch of a start, which alone can be a repetition. The tables are written in a fixed
order. A table that holds the batch already is left as it is, and one before it that does not had no row. What the
operator says now is compared with that before anything is written: the state that it leaves behind fits no other rows.
Settings cannot make the difference (`streaming.pinned`), so it is another release that decides otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from lake.tables import OpenTable
from lake.tail import newest_commit
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

ORDER = tuple(table.name for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD, BATCHES))
"""In which a batch is written."""
_NO_MATTER = frozenset({"engine_version"})
"""Columns that may differ between two attempts that say the same."""
_SPACE = 1 << 128


class ReplayDiffers(RuntimeError):
    """A batch of which the lake holds a part says something else now; the message says which and where."""


class Rows(NamedTuple):
    """Rows in no order, by their number and by what they say."""

    number: int
    digest: int

    @classmethod
    def of(cls, chunks: Iterable[pa.Table | pa.RecordBatch]) -> Rows:
        """Of any number of rows, a chunk in memory at a time."""
        number = digest = 0
        for chunk in chunks:
            names = [name for name in chunk.schema.names if name not in _NO_MATTER]
            for row in zip(*(chunk[name].to_pylist() for name in sorted(names)), strict=True):
                number += 1
                digest += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest(), "big")
        return cls(number, digest % _SPACE)


class FirstAttempt:
    """What the lake holds of a batch."""

    def __init__(self, tables: Mapping[str, OpenTable], app: str, batch_id: int) -> None:
        """`app` names the job's transactions. Raises what Delta raises."""
        self._tables, self._batch_id = tables, batch_id
        found = {name: tables[name].newest_transaction(app) for name in ORDER}
        self._held = {name for name, newest in found.items() if newest is not None and newest >= batch_id}
        self._last = max((ORDER.index(name) for name in self._held), default=-1)

    def check(self, table: Table, chunks: Iterable[pa.Table]) -> None:
        """Raises `ReplayDiffers` unless the rows of a table are those that the first attempt has written, if any."""
        if ORDER.index(table.name) <= self._last and table is not BATCHES:
            self._compare(table, Rows.of(chunks))

    def check_number(self, table: Table, number: int) -> None:
        """The same where only the number of rows is known."""
        if ORDER.index(table.name) <= self._last:
            self._compare(table, Rows(number, -1))

    def _compare(self, table: Table, now: Rows) -> None:
        then = Rows(0, 0)
        if table.name in self._held:
            written = newest_commit(self._tables[table.name].newest(), "batch_id", self._batch_id)
            if written is None:
                return
            then = Rows.of(written)
        if now.number != then.number or (now.digest >= 0 and now.digest != then.digest):
            told = f"{then.number} rows, of which some" if now.number == then.number else f"{then.number} rows and"
            raise ReplayDiffers(
                f"batch {self._batch_id} was begun before and says something else now: its first attempt has written "
                f"{told} {'differ' if now.number == then.number else f'this one has {now.number}'} in {table.name}"
            )
