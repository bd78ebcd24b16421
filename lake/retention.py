"""Whole days of a table are forgotten, in one commit, beside those who write, compact and follow it.

Stage: beside everything, on demand (`anabranch lake retain`). The tables are append-only, which Delta takes to mean
that no removal changes data; so the commit says of itself that it changes none, as that of a compaction does. Who
follows the table by version sees nothing of it. `lake vacuum` deletes the files when they are old enough
(`lake.maintenance`). The commit stands on the newest version or fails (`lake.compaction` says why), and nobody
compacts meanwhile.

Only `dead_letters` can be forgotten. Of the other tables, a rebuild and a replay need what was known from old rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from lake.compaction import alone
from lake.files import PARTITION, modified_now
from lake.reading import dataset_of
from lake.tables import HOOKS, MAX_RACES, open_table
from schemas.tables import DEAD_LETTERS, Table

RETAINABLE = (DEAD_LETTERS,)
"""The tables of which days can be forgotten."""
FORGOTTEN = "anabranch-forgotten-before"
"""Names in a table's log the day, as days since 1970, before which rows may be missing on purpose."""
_EPOCH = date(1970, 1, 1)
_OFFSETS = ("kafka_topic", "kafka_partition")


@dataclass(frozen=True)
class Forgotten:
    """What went, or would go."""

    days: Sequence[date]
    files: int
    rows: int
    size: int
    """Bytes."""
    kept: Sequence[date]
    """Older days that stay: a rebuild needs the newest record that they have of a Kafka partition."""


def forgotten_before(delta: DeltaTable) -> date | None:
    """The day before which rows may be missing on purpose; None: there is none."""
    days = delta.transaction_version(FORGOTTEN)
    return None if days is None else _EPOCH + timedelta(days=days)


def forget(lake: str, table: Table, before: date, is_dry_run: bool) -> Forgotten:
    """Forgets the days before `before` that nothing needs; `is_dry_run`: only says which.

    Raises `ValueError` for a table that is not in `RETAINABLE`, `Compacting` when somebody compacts it, and
    `DeltaError` or `OSError`. Killed in the middle it has forgotten all or nothing.
    """
    if table not in RETAINABLE:
        raise ValueError(f"days of {table.name} cannot be forgotten: replays and rebuilds need them")
    delta = open_table(lake, table)
    if delta is None:
        return Forgotten([], 0, 0, 0, [])
    if is_dry_run:
        return _look(delta, before)[0]
    removals: list[RemoveAction] = []
    with alone(lake, table):
        for attempt in range(MAX_RACES):
            delta.update_incremental()
            if attempt == 0 or not _has(delta, removals):
                # What comes meanwhile is newer: it makes no day needed that was not.
                found, removals = _look(delta, before)
                delta.update_incremental()
            if not removals:
                return found
            said = max(before, forgotten_before(delta) or before)
            try:
                delta.create_write_transaction(
                    removals,
                    mode="append",
                    schema=delta.schema(),
                    partition_by=[PARTITION],
                    commit_properties=CommitProperties(
                        max_commit_retries=0, app_transactions=[Transaction(FORGOTTEN, (said - _EPOCH).days)]
                    ),
                    post_commithook_properties=HOOKS,
                )
            except CommitFailedError:
                if attempt + 1 == MAX_RACES:
                    raise
                continue
            # Without it the log keeps the versions that added the files for ever, where commits are rare.
            delta.update_incremental()
            delta.create_checkpoint()
            break
    return found


def _has(delta: DeltaTable, removals: Sequence[RemoveAction]) -> bool:
    there = set(pa.table(delta.get_add_actions(flatten=True))["path"].to_pylist())
    return all(removal.path in there for removal in removals)


def _look(delta: DeltaTable, before: date) -> tuple[Forgotten, list[RemoveAction]]:
    named = pa.table(delta.get_add_actions(flatten=True)).select(
        [f"partition.{PARTITION}", "path", "size_bytes", "num_records"]
    )
    files = [
        (date.fromisoformat(str(day)), *rest)
        for day, *rest in zip(*(column.to_pylist() for column in named.columns), strict=True)
    ]
    old = {day for day, *_ in files if day < before}
    needed = _needed(delta) & old if old else set()
    going = [file for file in files if file[0] in old - needed]
    now = modified_now()
    removals = [RemoveAction(path, False, now, size, {PARTITION: day.isoformat()}) for day, path, size, _ in going]
    rows, size = sum(file[3] or 0 for file in going), sum(file[2] for file in going)
    return Forgotten(sorted({file[0] for file in going}), len(going), rows, size, sorted(needed)), removals


def _needed(delta: DeltaTable) -> set[date]:
    """The days with the record of each Kafka partition that is the last by its offset, or by the job's clock.

    From there a rebuild lets the job read on. A Kafka topic that was made anew has smaller offsets than before.
    """
    columns = [*_OFFSETS, "kafka_offset", "rejected_at", PARTITION]
    newest: dict[tuple[str, tuple[str, int]], tuple[object, date]] = {}
    for batch in dataset_of(delta).scanner(columns=columns, batch_readahead=1, fragment_readahead=1).to_batches():
        rows = pa.Table.from_batches([batch])
        for by in ("kafka_offset", "rejected_at"):
            best = rows.group_by([*_OFFSETS, PARTITION]).aggregate([(by, "max")])
            for row in best.to_pylist():
                key = by, (row["kafka_topic"], row["kafka_partition"])
                found = row[f"{by}_max"], row[PARTITION]
                newest[key] = max(newest[key], found) if key in newest else found
    return {day for _, day in newest.values()}
