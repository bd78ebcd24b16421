"""Spark SQL schemas as DDL strings, derived from the row models of `schemas.tables`; no Spark is imported.

Neighbours: `streaming`, whose operator and writers declare their output with these.
"""

from __future__ import annotations

from datetime import date, datetime

from schemas.arrow import column_types
from schemas.tables import Row

_SPARK = {
    str: "STRING",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    bytes: "BINARY",
    datetime: "TIMESTAMP",
    date: "DATE",
}


def spark_ddl(row: type[Row]) -> str:
    """The row model as a Spark DDL string: `decision_id STRING NOT NULL, …`."""
    return ", ".join(
        f"`{name}` {_SPARK[kind]}{'' if nullable else ' NOT NULL'}"
        for name, (kind, nullable) in column_types(row).items()
    )
