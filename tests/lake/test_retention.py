"""Days of dead letters are forgotten: what is kept is as before, for followers, a rebuild and the check of the lake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.main import cli
from anabranch.history.check.checking import check_lake
from lake.compaction import ALONE, Compacting, compact_group, exclude_others, small_files
from lake.files import table_path
from lake.forgotten import forgotten_before
from lake.maintenance import compact_by_delta_rs, delete_unused
from lake.retention import RETAINABLE, RemovedRows, forget_rows
from lake.state_snapshots import Horizon, SnapshotPiece, write_horizon
from lake.tables import OpenTable, create_lake, create_table
from lake.tail import Tail
from schemas.tables.arrow import arrow_schema, to_arrow
from schemas.tables.rows import BATCHES, DEAD_LETTERS, TABLES, DeadLetterRow
from tests.examples import examples
from tests.local.lake import batch

FIRST = date(2026, 11, 1)


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def letter(number: int, partition: int, offset: int) -> DeadLetterRow:
    """A dead letter of a day."""
    at = datetime(FIRST.year, FIRST.month, FIRST.day, 12, tzinfo=timezone.utc) + timedelta(days=number)
    return DeadLetterRow(
        reason="malformed",
        detail="what was wrong",
        key=b"k",
        raw=b"{",
        raw_size=1,
        raw_sha256=None,
        kafka_topic="segment-stats",
        kafka_partition=partition,
        kafka_offset=offset,
        kafka_timestamp=at,
        rejected_at=at,
        batch_id=number,
        day=at.date(),
        sample=None,
    )


def written(lake: str, letters: list[DeadLetterRow]) -> OpenTable:
    """A commit for each."""
    table = OpenTable(create_table(lake, DEAD_LETTERS))
    for number, one in enumerate(letters):
        table.append(to_arrow(DEAD_LETTERS, [one]), "app", number)
    return table


def stored(lake: str) -> list[tuple[date, int, int]]:
    found = DeltaTable(table_path(lake, DEAD_LETTERS)).to_pyarrow_table(
        columns=["day", "kafka_partition", "kafka_offset"]
    )
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def next_offsets(rows: list[tuple[date, int, int]]) -> dict[int, int]:
    """Where a rebuild reads on, as far as dead letters say."""
    return {partition: max(offset for _, one, offset in rows if one == partition) for _, partition, _ in rows}


@examples(5)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(0, 7),
    st.booleans(),
)
def test_retained_rows_unchanged_and_rebuild_works(letters, horizon, is_compacted):
    """A rebuild reads on at the same offsets."""
    with TemporaryDirectory() as lake:
        written(lake, [letter(*one) for one in letters])
        if is_compacted:
            compact_by_delta_rs(lake, DEAD_LETTERS, None)
        before = stored(lake)
        planned = forget_rows(lake, DEAD_LETTERS, day(horizon), is_dry_run=True)
        assert stored(lake) == before
        done = forget_rows(lake, DEAD_LETTERS, day(horizon), is_dry_run=False)
        assert done == planned
        after = stored(lake)
        assert next_offsets(after) == next_offsets(before)
        old = {one for one, *_ in before if one < day(horizon)}
        # Brute force: a day stays if some partition has its largest offset, or its last letter, on no later day alone.
        needed = set()
        for partition in {one for _, one, _ in before}:
            its = [row for row in before if row[1] == partition]
            needed.add(max(its, key=lambda row: (row[2], row[0]))[0])
            needed.add(max(its)[0])
        assert after == [row for row in before if row[0] not in old - needed]
        assert set(done.days) == old - needed
        assert set(done.kept) == old & needed
        assert done.rows == len(before) - len(after)


def test_follower_unaffected_and_repetition_harmless(tmp_path):
    lake = str(tmp_path)
    table = written(lake, [letter(number, 0, number) for number in range(4)])
    tails = [Tail(lake, DEAD_LETTERS), Tail(lake, DEAD_LETTERS, ["kafka_offset"], backlog=None)]
    assert [len(tail.read()) for tail in tails] == [4, 4]
    assert forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=False).rows == 2
    assert [tail.read() for tail in tails] == [[], []]
    table.newest()
    table.append(to_arrow(DEAD_LETTERS, [letter(4, 0, 4)]), "app", 5)
    assert [[row["kafka_offset"] for row in tail.read()] for tail in tails] == [[4], [4]]
    version = DeltaTable(table_path(lake, DEAD_LETTERS)).version()
    assert forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=True) == RemovedRows([], 0, 0, 0, [])
    assert DeltaTable(table_path(lake, DEAD_LETTERS)).version() == version
    assert [offset for *_, offset in stored(lake)] == [2, 3, 4]


def test_compaction_does_not_restore_deleted_rows(tmp_path):
    """This includes a compaction that began before the deletion."""
    lake = str(tmp_path)
    written(lake, [letter(number // 2, 0, number) for number in range(6)])
    delta = DeltaTable(table_path(lake, DEAD_LETTERS))
    group = [file for file in small_files(delta) if file.day == str(FIRST)]
    assert len(group) == 2
    forget_rows(lake, DEAD_LETTERS, day(1), is_dry_run=False)
    assert not compact_group(lake, DEAD_LETTERS, delta, group)
    assert [offset for *_, offset in stored(lake)] == [2, 3, 4, 5]


def test_looking_back_after_vacuum_finds_kept_rows(tmp_path):
    lake = str(tmp_path)
    table = written(lake, [letter(number, 0, number) for number in range(4)])
    follower = Tail(lake, DEAD_LETTERS)
    assert len(follower.read()) == 4
    forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=False)
    eight_days = time.time() - 8 * 86_400
    for entry in Path(table_path(lake, DEAD_LETTERS), "_delta_log").iterdir():
        os.utime(entry, (eight_days, eight_days))
    table.newest()
    table.append(to_arrow(DEAD_LETTERS, [letter(4, 0, 4)]), "app", 5)
    assert len(delete_unused(lake, DEAD_LETTERS, dry_run=False, keep_hours=0)) >= 2
    assert [row["kafka_offset"] for row in follower.read()] == [4]
    assert [row["kafka_offset"] for row in Tail(lake, DEAD_LETTERS).read()] == [4]
    assert [offset for *_, offset in stored(lake)] == [2, 3, 4]


def test_a_writer_beside_it_loses_nothing(tmp_path):
    lake = str(tmp_path)
    table = written(lake, [letter(number, 0, number) for number in range(4)])

    def write() -> None:
        for number in range(4, 24):
            table.newest()
            table.append(to_arrow(DEAD_LETTERS, [letter(4, 0, number)]), "app", number)

    writing = threading.Thread(target=write)
    writing.start()
    forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=False)
    writing.join()
    assert [offset for *_, offset in stored(lake)] == list(range(2, 24))


def test_nothing_deleted_during_sole_compaction(tmp_path):
    lake = str(tmp_path)
    written(lake, [letter(number, 0, number) for number in range(3)])
    with exclude_others(lake, DEAD_LETTERS), pytest.raises(Compacting, match="try again"):
        forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=False)
    assert len(stored(lake)) == 3


_KILLED = """
import contextlib, os, signal, sys
from datetime import date
from lake import retention
from schemas.tables.rows import DEAD_LETTERS

lake, moment = sys.argv[1:]
look, alone = retention._count_removals, retention.exclude_others

def dies(*given):
    look(*given)
    os.kill(os.getpid(), signal.SIGKILL)

@contextlib.contextmanager
def dies_at_the_end(*given):
    with alone(*given):
        yield
        os.kill(os.getpid(), signal.SIGKILL)

if moment == "before the commit":
    retention._count_removals = dies
else:
    retention.exclude_others = dies_at_the_end
retention.forget_rows(lake, DEAD_LETTERS, date(2026, 11, 3), is_dry_run=False)
"""


@pytest.mark.process
@pytest.mark.parametrize(("moment", "left"), [("before the commit", 4), ("after the commit", 2)])
def test_kill_is_atomic_and_next_try_completes(tmp_path, moment, left):
    lake = str(tmp_path)
    written(lake, [letter(number, 0, number) for number in range(4)])
    done = subprocess.run([sys.executable, "-c", _KILLED, lake, moment], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(stored(lake)) == left
    # The promise of the one that was killed is over after a quarter of an hour.
    OpenTable(create_table(lake, DEAD_LETTERS)).append(arrow_schema(DEAD_LETTERS.row).empty_table(), ALONE, 0)
    forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=False)
    assert [offset for *_, offset in stored(lake)] == [2, 3]
    assert forgotten_before(DeltaTable(table_path(lake, DEAD_LETTERS))) == day(2)


def test_files_that_others_replaced_meanwhile_are_looked_up_again(tmp_path, monkeypatch):
    """Releases before this one, and Spark, compact without a promise to be alone."""
    lake, commit, raced = str(tmp_path), DeltaTable.create_write_transaction, []
    written(lake, [*(letter(0, 0, offset) for offset in range(3)), letter(9, 0, 9)])

    def races(table, *given, **more):
        if not raced:
            raced.append(DeltaTable(table_path(lake, DEAD_LETTERS)).optimize.compact())
            raise CommitFailedError("another commit was first")
        commit(table, *given, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", races)
    assert forget_rows(lake, DEAD_LETTERS, day(5), is_dry_run=False).rows == 3
    assert stored(lake) == [(day(9), 0, 9)]


def test_batches_stay_while_all_other_rows_do(tmp_path):
    lake = str(tmp_path)
    rows = [batch(number, 86_400 * number) for number in range(3)]
    OpenTable(create_table(lake, BATCHES)).append(to_arrow(BATCHES, rows), "app", 1)
    write_horizon(
        lake, Horizon(datetime(2026, 11, 22, tzinfo=timezone.utc), "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b"")
    )
    assert forget_rows(lake, BATCHES, date(2026, 11, 22), is_dry_run=False) == RemovedRows([], 0, 0, 0, [])


def test_lake_check_knows_intended_deletions(tmp_path):
    lake = str(tmp_path)
    letters = [letter(number, 0, number) for number in range(4)]
    written(lake, letters)
    counted = [
        batch(
            one.batch_id,
            0,
            batch_at=one.rejected_at,
            day=one.day,
            messages=1,
            messages_accepted=0,
            messages_suppressed=0,
            events=0,
            samples=0,
            samples_accepted=0,
            samples_insignificant=0,
            samples_stale=0,
            evaluations=0,
        )
        for one in letters
    ]
    OpenTable(create_lake(lake)["batches"]).append(to_arrow(BATCHES, counted), "app", 1)
    assert check_lake(lake).to_json()["findings"] == []
    forget_rows(lake, DEAD_LETTERS, day(2), is_dry_run=False)
    assert check_lake(lake).to_json()["findings"] == []


def test_tables_that_replays_need_are_never_forgotten(tmp_path):
    for table in TABLES.values():
        if table not in RETAINABLE:
            with pytest.raises(ValueError, match="replays and rebuilds need them"):
                forget_rows(str(tmp_path), table, day(1), is_dry_run=False)


def test_command_changes_nothing_by_default(tmp_path):
    lake = str(tmp_path / "lake")
    written(lake, [letter(number - 400, 0, number) for number in range(3)])
    own = tmp_path / "own.toml"
    own.write_text(f'[lake]\npath = "{lake}"\n')
    asked = ["--config", str(own), "lake", "retain", "dead_letters", "--days", "30"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    assert "2 rows of 2 days" in done.output
    assert "add --apply" in done.output
    assert len(stored(lake)) == 3
    done = CliRunner().invoke(cli, [*asked, "--apply"])
    assert done.exit_code == 0, done.output
    assert [offset for *_, offset in stored(lake)] == [2]
    assert "kept for a rebuild" in done.output
