"""Queries on the table `batches`, which has one row per batch that the job has run.

An outline stands for all rows where only their order matters. It is read one day at a time, so that a question about
one topic never holds a year of batches in memory.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.files import PARTITION, dataset_of
from lake.tables import open_table
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES


def read_batches(
    lake: str, columns: Sequence[str], since: datetime | None = None, until: datetime | None = None
) -> pa.Table:
    """Return the batches from `since` to `until` (aware, inclusive), cut to some required columns.

    Empty when the table is missing. Raises `DeltaError` or `OSError`.
    """
    return pa.concat_tables([_schema(columns).empty_table(), *_days(lake, columns, since, until)])


def read_outline(
    lake: str, columns: Sequence[str], until: datetime | None = None, instants: pa.Array | None = None
) -> pa.Table:
    """Return the `outline` of all batches up to `until`, with every batch of one of these instants.

    `columns` must include those that `outline` needs. Raises as `read_batches`.
    """
    parts = [_schema(columns).empty_table()]
    for rows in _days(lake, columns, None, until):
        asked = None if instants is None else pc.is_in(rows["batch_at"], instants)
        parts.append(outline_of_batches(rows, asked))
    return pa.concat_tables(parts)


def outline_of_batches(batches: pa.Table, more: pa.ChunkedArray | None = None) -> pa.Table:
    """Keep `more`, and each generation's first and last batch, and those around a clock set back."""
    codes = batches["generation"].combine_chunks().dictionary_encode().indices.to_numpy()
    numbers, ats = batches["batch_id"].to_numpy(), np.asarray(pc.cast(batches["batch_at"], pa.int64()), np.int64)
    needed = np.zeros(len(batches), np.bool_) if more is None else np.array(more, np.bool_)
    by_number = np.lexsort((ats, numbers, codes))
    for order in (by_number, np.lexsort((ats, codes))):
        changes = codes[order][1:] != codes[order][:-1]
        needed[order[np.r_[True, changes][: len(order)]]] = True
        needed[order[np.r_[changes, True][: len(order)]]] = True
    ordered = ats[by_number]
    is_back = ordered[:-1] > ordered[1:]
    needed[by_number[:-1][is_back]] = needed[by_number[1:][is_back]] = True
    return batches.filter(pa.array(needed))


def first_batch_after(lake: str, after: datetime) -> datetime | None:
    """Return the time of the first batch after an instant (aware), or None. Raises as `read_batches`."""
    for rows in _days(lake, ("batch_at",), after, None):
        later = rows["batch_at"].filter(pc.greater(rows["batch_at"], pa.scalar(after)))
        if len(later):
            return _aware_instant(pc.min(later))
    return None


def last_batch(lake: str) -> datetime | None:
    """Return the time of the newest batch, or None. Raises as `read_batches`."""
    for rows in _days(lake, ("batch_at",), None, None, is_newest_first=True):
        if len(rows):
            return _aware_instant(pc.max(rows["batch_at"]))
    return None


def _days(
    lake: str, columns: Sequence[str], since: datetime | None, until: datetime | None, is_newest_first: bool = False
) -> Iterator[pa.Table]:
    """Yield the rows between two instants, one day at a time."""
    if (delta := open_table(lake, BATCHES)) is None:
        return
    named = pa.table(delta.get_add_actions(flatten=True))[f"partition.{PARTITION}"].unique().to_pylist()
    at, asked = pc.field("batch_at"), list(dict.fromkeys((*columns, "batch_at")))
    bounds = [
        *(() if since is None else [at >= pa.scalar(since)]),
        *(() if until is None else [at <= pa.scalar(until)]),
    ]
    dataset = dataset_of(delta, reduce(and_, bounds) if bounds else None)
    for day in sorted((date.fromisoformat(str(name)) for name in named), reverse=is_newest_first):
        if (since is not None and day < since.date()) or (until is not None and day > until.date()):
            continue
        where = reduce(and_, bounds, pc.field(PARTITION) == pa.scalar(day))
        yield dataset.to_table(columns=asked, filter=where).select(list(columns)).cast(_schema(columns))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([arrow_schema(BATCHES.row).field(name) for name in columns])


def _aware_instant(instant: pa.Scalar) -> datetime:
    aware: datetime = instant.as_py()
    return aware
