"""Arrow schemas derived from the row models of `schemas.tables.rows`, and conversion of rows.

Used by every writer and reader of Delta that goes through delta-rs, and by the streaming job's driver.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from functools import cache
from typing import Any

import pyarrow as pa

from schemas.tables.rows import Table, TableRow

_ARROW = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
}


@cache
def column_types(row: type[TableRow]) -> dict[str, tuple[type, bool]]:
    """Return column name to (Python type, nullable), in the model's order."""
    columns: dict[str, tuple[type, bool]] = {}
    for name, field in row.model_fields.items():
        arguments = typing.get_args(field.annotation)
        nullable = isinstance(field.annotation, types.UnionType) and type(None) in arguments
        kind = next(a for a in arguments if a is not type(None)) if nullable else field.annotation
        if kind not in _ARROW:
            raise TypeError(f"{row.__name__}.{name}: no column type for {field.annotation}")
        columns[name] = (typing.cast(type, kind), nullable)
    return columns


@cache
def arrow_schema(row: type[TableRow]) -> pa.Schema:
    """Return the Arrow schema of a row model, columns in its order."""
    return pa.schema(
        [pa.field(name, _ARROW[kind], nullable=nullable) for name, (kind, nullable) in column_types(row).items()]
    )


def to_arrow(table: Table, rows: Iterable[TableRow | Mapping[str, Any]]) -> pa.Table:
    """Return rows (models or mappings) as an Arrow table in exactly the table's schema."""
    plain = [row.model_dump() if isinstance(row, TableRow) else dict(row) for row in rows]
    return pa.Table.from_pylist(plain, schema=arrow_schema(table.row))
