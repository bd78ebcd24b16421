"""The log of a busy table: what its checkpoints still name, and what is on disk all the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from lake.compaction import compact_group, small_files
from lake.maintenance import delete_unused
from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DEAD_LETTERS
from tests.local.lake import dead_letter
from tests.waiting import wait_until

NUMBER = 20


def named(table: DeltaTable) -> tuple[int, int]:
    """How many files of rows, and how many that were replaced, a checkpoint names that is made now."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    for older in (*log.glob("*.checkpoint.parquet"), *log.glob("_last_checkpoint")):
        older.unlink()
    table = DeltaTable(table.table_uri)
    table.create_checkpoint()
    [checkpoint] = log.glob("*.checkpoint.parquet")
    found = pq.read_table(checkpoint)
    return len(found) - found["add"].null_count, len(found) - found["remove"].null_count


def test_checkpoint_drops_replaced_files_for_vacuum(tmp_path):
    """Vacuum deletes them by their age."""
    lake = str(tmp_path)
    table = create_table(lake, DEAD_LETTERS)
    for number in range(NUMBER):
        write_deltalake(table, to_arrow(DEAD_LETTERS, [dead_letter(f"r{number}", number)]), mode="append")
    assert compact_group(lake, DEAD_LETTERS, table, small_files(table))
    assert named(table) == (1, NUMBER)
    # An hour cannot be waited for.
    DeltaTable(table.table_uri).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 1 seconds"})
    wait_until(lambda: named(table) == (1, 0))

    files = sorted((tmp_path / "dead_letters").glob("day=*/*.parquet"))
    assert len(files) == NUMBER + 1
    assert delete_unused(lake, DEAD_LETTERS, dry_run=False) == []
    then = time.time() - 3600 * (DEAD_LETTERS.file_hours + 1)
    for file in files:
        os.utime(file, (then, then))
    assert len(delete_unused(lake, DEAD_LETTERS, dry_run=False)) == NUMBER
    assert [Path(uri).name for uri in DeltaTable(tmp_path / "dead_letters").file_uris()] == [
        file.name for file in (tmp_path / "dead_letters").glob("day=*/*.parquet")
    ]
    assert DeltaTable(tmp_path / "dead_letters").to_pyarrow_table().num_rows == NUMBER
