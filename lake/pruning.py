"""Guarantees about the rows of each file of a table, by which Arrow skips files without opening them.

delta-rs states the bounds of every column of every file, which takes it a millisecond a file. A condition needs those
of its own columns only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from deltalake import DeltaTable

_TRUNCATED = pa.scalar(1000, pa.duration("us"))
"""Delta keeps bounds of instants in whole milliseconds, rounded down."""


def columns_in(where: pc.Expression | None, names: Sequence[str]) -> list[str]:
    """Return the names that a condition may mention: all that it does, and perhaps more."""
    return [name for name in names if where is not None and re.search(rf"\b{name}\b", str(where))]


def files_with_guarantees(delta: DeltaTable, where: pc.Expression | None) -> Iterator[tuple[str, pc.Expression]]:
    """Yield path, within the table's folder, and guarantee of each file, as far as `where` needs it."""
    files = pa.table(delta.get_add_actions(flatten=True))
    partition = delta.metadata().partition_columns
    stored = [name for name in pa.schema(delta.schema().to_arrow()).names if name not in partition]
    every = [
        *(_of_partition(name, files) for name in partition),
        *(_of_bounds(name, files) for name in columns_in(where, stored) if f"null_count.{name}" in files.column_names),
    ]
    for number, path in enumerate(files["path"].to_pylist()):
        yield unquote(path), reduce(and_, (guarantees[number] for guarantees in every), pc.scalar(True))


def _of_partition(name: str, files: pa.Table) -> list[pc.Expression]:
    values = files[f"partition.{name}"]
    known = {value: pc.field(name) == value for value in values.unique() if value.is_valid}
    return [known[value] if value.is_valid else pc.field(name).is_null() for value in values]


def _of_bounds(name: str, files: pa.Table) -> list[pc.Expression]:
    """Return what the statistics of each file say of a column."""
    column, guarantees = pc.field(name), []
    least, most = (files[f"{bound}.{name}"] if f"{bound}.{name}" in files.column_names else None for bound in _BOUNDS)
    if most is not None and pa.types.is_timestamp(most.type):
        most = pc.add(most, _TRUNCATED)
    counts = zip(files["num_records"].to_pylist(), files[f"null_count.{name}"].to_pylist(), strict=True)
    for number, (rows, nulls) in enumerate(counts):
        if nulls is None or least is None or most is None:
            guarantees.append(pc.scalar(True))
        elif nulls == rows:
            guarantees.append(column.is_null())
        elif not (least[number].is_valid and most[number].is_valid):
            guarantees.append(column.is_valid() if nulls == 0 else pc.scalar(True))
        else:
            bounds = column >= least[number], column <= most[number]
            # Arrow knows this form of a bound with nulls only.
            guarantees.append(reduce(and_, bounds if nulls == 0 else (bound | column.is_null() for bound in bounds)))
    return guarantees


_BOUNDS = ("min", "max")
