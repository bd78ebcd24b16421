"""Check that a batch repeated after a crash matches its first attempt, so that lake and state agree.

Stage: in the sink, for the first batch of a start, the only possible repetition. The tables are written in turns
(`TURNS`). A table that holds the batch already is not written; one without it, though one of a later turn has it,
had no rows. The new output is compared with these before anything is written, because the new state fits no other
rows. Settings cannot cause a difference (`streaming.checkpoint.pinned`), so another release does.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from lake.tables import OpenTable
from lake.tail import newest_commit
from schemas.tables.digests import digests_of_rows
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
            "sender",
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
    def of(cls, table: Table, chunks: Iterable[pa.Table | pa.RecordBatch]) -> "RowsDigest":
        """Compute both for any number of rows, one chunk in memory at a time, by column."""
        number = digest = 0
        no_matter = {"engine_version", *_NO_MATTER.get(table.name, ())}
        for chunk in chunks:
            rows = digests_of_rows(chunk, table, no_matter)
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
