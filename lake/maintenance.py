"""OPTIMIZE and VACUUM for tables of the lake, on demand; `lake.upkeep` compacts while a writer runs.

OPTIMIZE merges small files without changing rows or change feeds; VACUUM deletes replaced files and those that
killed writers left.

Stage: beside the job, on demand. Safe while the job and an executor run: compactions and appends do not conflict,
whichever commits first (Delta's rules). Two concurrent compactions of one table would double rows, so each runs
within `lake.compaction.exclude_others`. Replaced files stay an hour or more, until they are `Table.file_hours` old,
for readers that still use them.
"""

from dataclasses import dataclass
from datetime import date
from typing import Any

from deltalake import DeltaTable

from lake.compaction import exclude_others
from lake.files import table_path
from schemas.tables.rows import Table


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction."""

    files_removed: int
    files_added: int


def cluster_column(table: Table) -> str:
    """Return the column by which a table is queried: the scalable topic, or a dead letter's origin."""
    return next(name for name in ("subject", "topic", "kafka_topic", "batch_id") if name in table.row.model_fields)


def compact_by_delta_rs(lake: str, table: Table, cluster_before: date | None) -> Compacted:
    """Compact here, or Z-order days before `cluster_before`. Raises `DeltaError` or `Compacting`."""
    with exclude_others(lake, table):
        optimizer = DeltaTable(table_path(lake, table)).optimize
        if cluster_before is None:
            metrics = optimizer.compact()
        else:
            days = [("day", "<", cluster_before.isoformat())]
            metrics = optimizer.z_order([cluster_column(table)], partition_filters=days)
    return Compacted(metrics["numFilesRemoved"], metrics["numFilesAdded"])


def delete_unused(lake: str, table: Table, dry_run: bool, keep_hours: int | None = None) -> list[str]:
    """Delete files without current rows and return their paths; `dry_run`: only list them.

    Deletes only files older than `Table.file_hours` that were not replaced within the last hour; `keep_hours` is for
    tables that nobody reads or writes.
    """
    delta = DeltaTable(table_path(lake, table))
    if not dry_run:
        # Remove old logs first: readers of them would look for the files.
        delta.cleanup_metadata()
    files: list[str] = delta.vacuum(
        retention_hours=table.file_hours if keep_hours is None else keep_hours,
        dry_run=dry_run,
        enforce_retention_duration=keep_hours is None,
        full=True,
    )
    return files


def compact_by_delta_spark(spark: Any, lake: str, table: Table, cluster_before: date | None) -> Compacted:
    """Compact large tables by a Spark session. Raises what Spark raises, or `Compacting`."""
    statement = f"OPTIMIZE delta.`{table_path(lake, table)}`"
    if cluster_before is not None:
        statement += f" WHERE day < '{cluster_before.isoformat()}' ZORDER BY ({cluster_column(table)})"
    with exclude_others(lake, table):
        row = spark.sql(statement).first()
    return Compacted(row["metrics"]["numFilesRemoved"], row["metrics"]["numFilesAdded"])
