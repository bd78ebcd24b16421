"""OPTIMIZE: many small files of a table become few large ones; no row changes, and readers of changes see nothing.
VACUUM: deletes what was replaced, and what killed writers have left.

Stage: beside the job, on demand. Safe while the job and an executor run: compaction and appends do not
conflict, whichever commits first (Delta's rules). Two compactions of one table at once would double rows, so each is
`lake.compaction.alone`.
Replaced files stay on disk for an hour at least, and until they are `Table.file_hours` old, for those who read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from deltalake import DeltaTable

from lake.compaction import alone
from lake.files import table_path
from schemas.tables import Table


@dataclass(frozen=True)
class Compacted:
    """What a compaction did."""

    files_removed: int
    files_added: int


def cluster_column(table: Table) -> str:
    """The column by which a table is asked for: the scalable topic, or where a dead letter came from."""
    return next(name for name in ("subject", "topic", "kafka_topic", "batch_id") if name in table.row.model_fields)


def compact_by_delta_rs(lake: str, table: Table, cluster_before: date | None) -> Compacted:
    """Compacts in this process. With `cluster_before`, only days before it, Z-ordered by `cluster_column`.

    Raises `DeltaError`, or `Compacting` when somebody else compacts it.
    """
    with alone(lake, table):
        optimizer = DeltaTable(table_path(lake, table)).optimize
        if cluster_before is None:
            metrics = optimizer.compact()
        else:
            days = [("day", "<", cluster_before.isoformat())]
            metrics = optimizer.z_order([cluster_column(table)], partition_filters=days)
    return Compacted(metrics["numFilesRemoved"], metrics["numFilesAdded"])


def delete_unused(lake: str, table: Table, dry_run: bool, keep_hours: int | None = None) -> list[str]:
    """Deletes files of a table that no row is in any more; their paths in the table. `dry_run`: only says which.

    Only what is older than `Table.file_hours` and was not replaced within the last hour; `keep_hours` is for tables
    that nobody reads or writes.
    """
    delta = DeltaTable(table_path(lake, table))
    if not dry_run:
        # First the old logs: who looks back through them would look for the files.
        delta.cleanup_metadata()
    files: list[str] = delta.vacuum(
        retention_hours=table.file_hours if keep_hours is None else keep_hours,
        dry_run=dry_run,
        enforce_retention_duration=keep_hours is None,
        full=True,
    )
    return files
