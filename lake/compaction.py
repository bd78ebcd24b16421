"""Compaction of small files beside concurrent writers, without losing or doubling rows.

Stage: under `lake.upkeep`. Others may append, compact, or be killed at any time. The files are read and rewritten
aside first. The commit that replaces them then applies to the newest version, in which all old ones still exist, or
it fails and looks again: delta-rs (1.6) accepts a compaction that replaces files which another one has replaced
already, because it takes a commit without `dataChange` for no change, and their rows would exist twice. For that
reason its own OPTIMIZE runs only within `exclude_others`.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from lake.files import PARTITION, RowsFile, WrittenFile, modified_now, rows_of
from lake.tables import HOOKS, MAX_RACES, OpenTable, create_table
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import Table

TARGET_BYTES = 32 * 2**20
"""Size below which a file is small, and approximate size of its replacement, which is final."""
GROUP_BYTES = 16 * 2**20
"""Size of the rows in memory at a time."""
ALONE = "anabranch-compaction-alone"
"""Name in a table's log of the time (Unix seconds) until which nobody else compacts it."""
ALONE_SECONDS = 900.0
"""Duration that `exclude_others` reserves at a time; it is renewed three times as often."""


class Compacting(RuntimeError):
    """Another process compacts the table; the message says until when it has reserved that."""


class SmallFile(NamedTuple):
    """A file of a table below the target size."""

    day: str
    modified: int
    path: str
    size: int
    """Bytes."""


def small_files(delta: DeltaTable) -> list[SmallFile]:
    """Return the small files of a table, by day and oldest first."""
    columns = [f"partition.{PARTITION}", "modification_time", "path", "size_bytes"]
    actions = pa.table(delta.get_add_actions(flatten=True)).select(columns).to_pydict()
    files = (SmallFile(str(day), *cells) for day, *cells in zip(*actions.values(), strict=True))
    return sorted(file for file in files if file.size < TARGET_BYTES)


def group_files(files: Sequence[SmallFile], many: int, most_bytes: int) -> list[list[SmallFile]]:
    """Group `small_files` of days with at least `many` that may merge, at most `most_bytes` in total."""
    complete: list[list[SmallFile]] = []
    left = most_bytes
    for _, each in groupby(files, lambda file: file.day):
        of_day = list(each)
        if len(of_day) < many:
            continue
        group: list[SmallFile] = []
        size = 0
        for file in of_day:
            if left < file.size:
                break
            if group and size + file.size > TARGET_BYTES:
                complete.append(group)
                group, size = [], 0
            group.append(file)
            size, left = size + file.size, left - file.size
        complete.append(group)
    return [group for group in complete if len(group) > 1]


def compact_group(lake: str, table: Table, delta: DeltaTable, group: Sequence[SmallFile]) -> bool:
    """Replace a group's files by one. Returns False if another process compacts, or has compacted these.

    `delta` is at the newest version afterwards. Raises `DeltaError` or `OSError`.
    """
    if _is_left_alone(delta):
        return False
    file = RowsFile(lake, table, pa.scalar(group[0].day).cast(pa.date32()).as_py(), "zstd")
    for rows in _join_chunks(rows for old in group for rows in rows_of(lake, table, old.path)):
        file.write(rows)
    file.close()
    new, is_done = WrittenFile.of(lake, table, file.path), False
    try:
        is_done = _replace_group(delta, group, new)
    finally:
        # After an unexplained failure the file may be in the table; leave it to `lake vacuum` then.
        if not is_done and not _has_files(delta, [new.path]):
            new.discard()
    return is_done


@contextmanager
def exclude_others(lake: str, table: Table) -> Iterator[None]:
    """Exclude other compactions of the table. Raises `Compacting`, `DeltaError` or `OSError`."""
    opened, schema = OpenTable(create_table(lake, table)), arrow_schema(table.row)
    until = opened.table.transaction_version(ALONE) or 0
    busy = f"{table.name} is being compacted by another process; that is promised to be over in"
    if until > time.time():
        raise Compacting(f"{busy} {until - time.time():.0f} s: try again then")

    def say(until: float) -> None:
        opened.append(schema.empty_table(), ALONE, int(until))

    try:
        # It applies to the version that was just read, so of two that begin at once one fails.
        say(time.time() + ALONE_SECONDS)
    except CommitFailedError as error:
        raise Compacting(f"{busy} {ALONE_SECONDS:.0f} s: try again then") from error
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(ALONE_SECONDS / 3):
            with suppress(DeltaError, OSError):
                opened.newest()
                say(time.time() + ALONE_SECONDS)

    renewing = threading.Thread(target=renew, name="alone", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(DeltaError, OSError):
            opened.newest()
            say(0)


def _replace_group(delta: DeltaTable, group: Sequence[SmallFile], new: WrittenFile) -> bool:
    paths = [old.path for old in group]
    for _ in range(MAX_RACES):
        delta.update_incremental()
        if _is_left_alone(delta) or not _has_files(delta, paths):
            return False
        now = modified_now()
        removed = [RemoveAction(old.path, False, now, old.size, {PARTITION: old.day}) for old in group]
        try:
            delta.create_write_transaction(
                [AddAction(new.path, new.size, {PARTITION: new.day}, now, False, new.statistics), *removed],
                mode="append",
                schema=delta.schema(),
                partition_by=[PARTITION],
                # Without retries it applies to this version, or fails.
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=HOOKS,
            )
        except CommitFailedError:
            continue
        delta.update_incremental()
        return True
    return False


def _is_left_alone(delta: DeltaTable) -> bool:
    return (delta.transaction_version(ALONE) or 0) > time.time()


def _has_files(delta: DeltaTable, paths: Sequence[str]) -> bool:
    delta.update_incremental()
    return set(paths) <= set(pa.table(delta.get_add_actions(flatten=True))["path"].to_pylist())


def _join_chunks(chunks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join chunks into tables of about `GROUP_BYTES`."""
    pending: list[pa.Table] = []
    size = 0
    for chunk in chunks:
        pending.append(chunk)
        size += chunk.nbytes
        if size >= GROUP_BYTES:
            yield pa.concat_tables(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_tables(pending)
