"""The lake: one folder with one Delta table per `schemas.tables.Table`, made and opened through delta-rs.

Never used in a forked child: delta-rs' runtime refuses that (facts of the stack); processes are spawned.
"""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from schemas.arrow import arrow_schema
from schemas.tables import TABLES, Table


def table_path(lake: str | Path, table: Table) -> str:
    """Where a table of the lake lives: a folder of its name. `lake` is a path or an object-store URL."""
    return f"{str(lake).rstrip('/')}/{table.name}"


def create_table(lake: str | Path, table: Table) -> DeltaTable:
    """The table, made if it is not there, with its properties. Safe to race: an existing table is left as it is."""
    path = table_path(lake, table)
    if "://" not in path:
        Path(path).mkdir(parents=True, exist_ok=True)
    return DeltaTable.create(
        path,
        schema=arrow_schema(table.row),
        mode="ignore",
        partition_by=list(table.partition_by),
        configuration=dict(table.properties),
        name=table.name,
    )


def create_lake(lake: str | Path) -> dict[str, DeltaTable]:
    """Every table of the lake by its name, made where missing."""
    return {name: create_table(lake, table) for name, table in TABLES.items()}


def open_table(lake: str | Path, table: Table) -> DeltaTable | None:
    """The table, or None when nobody has made it yet."""
    try:
        return DeltaTable(table_path(lake, table))
    except TableNotFoundError:
        return None
