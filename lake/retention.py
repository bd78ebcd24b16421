"""Removal of old rows in one commit, while other processes write, compact and follow the table.

Stage: beside everything, on demand (`anabranch lake retain`). The tables are append-only, which Delta takes to mean
that no removal changes data; so the commit declares no data change, like a compaction, and followers of versions do
not see it. `lake vacuum` deletes the files when they are old enough (`lake.maintenance`). The commit applies to the
newest version or fails (see `lake.compaction`), and compactions are excluded meanwhile.

Of `dead_letters`, whole days go. For inputs and results of the job, a horizon is written first
(`lake.state_snapshots`), from which rebuild and replay continue; rows stay that describe the state at the start of the
kept days, or unfinished decisions (`lake.retention_filter`). Of `batches`, rows go that nothing can ask for any more,
once the rows of all topics and clusters of their time are gone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import groupby

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from lake.compaction import exclude_others
from lake.files import PARTITION, RowsFile, WrittenFile, dataset_of, modified_now
from lake.forgotten import Retained, retention_marks
from lake.retention_filter import THINNED, staying_rows
from lake.state_snapshots import has_horizon
from lake.tables import HOOKS, MAX_RACES, open_table
from schemas.tables.rows import BATCHES, DEAD_LETTERS, Table

RETAINABLE = (DEAD_LETTERS, *THINNED)
"""Tables whose rows can be removed. Decisions first, then their outcomes and waits."""
_OFFSETS = ("kafka_topic", "kafka_partition")


@dataclass(frozen=True)
class RemovedRows:
    """Rows that were, or would be, removed."""

    days: Sequence[date]
    files: int
    rows: int
    size: int
    """Bytes."""
    kept: Sequence[date]
    """Older days that stay: a rebuild needs their newest record of a Kafka partition."""


def forget_rows(
    lake: str, table: Table, before: date, is_dry_run: bool, namespaces: Collection[str] = ()
) -> RemovedRows:
    """Remove what nothing needs of the days before `before`; `is_dry_run`: only report it.

    `namespaces` (`tenant/namespace`; not for `dead_letters` and `batches`): rows of topics elsewhere stay. Batches
    stay from `batches_limit` on. If killed, it has removed all or nothing. Raises `ValueError` for a table that is
    not in `RETAINABLE`, or without a horizon at `before` or later; `Compacting` when another process compacts it;
    `DeltaError` or `OSError`.
    """
    if table not in RETAINABLE:
        raise ValueError(f"days of {table.name} cannot be forgotten: replays and rebuilds need them")
    delta = open_table(lake, table)
    if delta is None or not _old_files(delta, before):
        return RemovedRows([], 0, 0, 0, [])
    if table in THINNED and not is_dry_run and not has_horizon(lake, before):
        raise ValueError(f"there is no horizon at {before} or later: a rebuild would need the rows")
    if table is BATCHES and not is_dry_run:
        if (limit := batches_limit(lake)) is None:
            return RemovedRows([], 0, 0, 0, [])
        before = min(before, limit)
    look = partial(_thin_files, lake, table, namespaces) if table in THINNED else _count_removals
    if is_dry_run:
        return look(delta, before, False)[0]
    removals: list[RemoveAction] = []
    thin: list[WrittenFile] = []
    with exclude_others(lake, table):
        for attempt in range(MAX_RACES):
            delta.update_incremental()
            if attempt == 0 or not _has_files(delta, removals):
                # Rows added meanwhile are newer and make no other day necessary.
                forgotten, removals, thin = look(delta, before, True)
                delta.update_incremental()
            if not removals:
                return forgotten
            try:
                delta.create_write_transaction(
                    [*removals, *(_added(file) for file in thin)],
                    mode="append",
                    schema=delta.schema(),
                    partition_by=[PARTITION],
                    commit_properties=CommitProperties(
                        max_commit_retries=0, app_transactions=retention_marks(delta, before, namespaces)
                    ),
                    post_commithook_properties=HOOKS,
                )
            except CommitFailedError:
                if attempt + 1 == MAX_RACES:
                    raise
                continue
            # Without a checkpoint the log would keep the versions that added the files where commits are rare.
            delta.update_incremental()
            delta.create_checkpoint()
            break
    return forgotten


def batches_limit(lake: str) -> date | None:
    """Return the day before which no row of `batches` is needed; None: all are needed.

    It is the day before which rows of all topics and clusters are removed, so nothing earlier can be asked for.
    Raises what Delta raises.
    """
    everywhere = Retained(lake).everywhere
    return None if everywhere is None else everywhere.date()


def _added(file: WrittenFile) -> AddAction:
    return AddAction(file.path, file.size, {PARTITION: file.day}, modified_now(), False, file.statistics)


def _has_files(delta: DeltaTable, removals: Sequence[RemoveAction]) -> bool:
    there = set(pa.table(delta.get_add_actions(flatten=True))["path"].to_pylist())
    return all(removal.path in there for removal in removals)


def _old_files(delta: DeltaTable, before: date) -> list[tuple[date, str, int, int]]:
    """Return day, path, bytes and number of rows of the files of old days, oldest first."""
    named = pa.table(delta.get_add_actions(flatten=True)).select(
        [f"partition.{PARTITION}", "path", "size_bytes", "num_records"]
    )
    files = (
        (date.fromisoformat(str(day)), path, size, rows or 0)
        for day, path, size, rows in zip(*(column.to_pylist() for column in named.columns), strict=True)
    )
    return sorted(file for file in files if file[0] < before)


def _removed(files: Sequence[tuple[date, str, int, int]]) -> list[RemoveAction]:
    now = modified_now()
    return [RemoveAction(path, False, now, size, {PARTITION: day.isoformat()}) for day, path, size, _ in files]


def _thin_files(
    lake: str, table: Table, namespaces: Collection[str], delta: DeltaTable, before: date, is_written: bool
) -> tuple[RemovedRows, list[RemoveAction], list[WrittenFile]]:
    """Return the files with rows to remove, and new ones with their remaining rows."""
    files, going, thin, rows = _old_files(delta, before), list[tuple[date, str, int, int]](), list[WrittenFile](), 0
    stays = staying_rows(lake, table, [path for _, path, *_ in files], before, namespaces, not is_written)
    for day, of_day in groupby(files, lambda file: file[0]):
        remaining = None
        for file in of_day:
            number = sum(len(some) for some in stays.rows(lake, file[1])) if file[3] else 0
            if number == file[3]:
                continue
            going.append(file)
            rows += file[3] - number
            if is_written and number:
                remaining = remaining or RowsFile(lake, table, day, "zstd")
                for some in stays.rows(lake, file[1]):
                    remaining.write(some)
        if remaining is not None:
            remaining.close()
            thin.append(WrittenFile.of(lake, table, remaining.path))
    size = sum(file[2] for file in going) - sum(file.size for file in thin)
    return RemovedRows(sorted({file[0] for file in going}), len(going), rows, size, []), _removed(going), thin


def _count_removals(
    delta: DeltaTable, before: date, is_written: bool
) -> tuple[RemovedRows, list[RemoveAction], list[WrittenFile]]:
    files = _old_files(delta, before)
    old = {day for day, *_ in files}
    needed = _needed_days(delta) & old if old else set()
    going = [file for file in files if file[0] not in needed]
    rows, size = sum(file[3] for file in going), sum(file[2] for file in going)
    forgotten = RemovedRows(sorted({file[0] for file in going}), len(going), rows, size, sorted(needed))
    return forgotten, _removed(going), []


def _needed_days(delta: DeltaTable) -> set[date]:
    """Return the days with the last record of each Kafka partition, by offset or by the job's clock.

    A rebuild has the job continue from these. A recreated Kafka topic has smaller offsets than before.
    """
    columns = [*_OFFSETS, "kafka_offset", "rejected_at", PARTITION]
    newest: dict[tuple[str, tuple[str, int]], tuple[object, date]] = {}
    for batch in dataset_of(delta).scanner(columns=columns, batch_readahead=1, fragment_readahead=1).to_batches():
        rows = pa.Table.from_batches([batch])
        for by in ("kafka_offset", "rejected_at"):
            for row in rows.group_by([*_OFFSETS, PARTITION]).aggregate([(by, "max")]).to_pylist():
                key = by, (row["kafka_topic"], row["kafka_partition"])
                bound = row[f"{by}_max"], row[PARTITION]
                newest[key] = max(newest[key], bound) if key in newest else bound
    return {day for _, day in newest.values()}
