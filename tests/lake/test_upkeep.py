"""Upkeep beside the work: days of many small files become few, old logs go, no row and no follower is disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import ExitStack
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lake import compaction, upkeep
from lake.compaction import Compacting, compact_group, exclude_others, small_files
from lake.files import table_path
from lake.lease import LeasedTable
from lake.tables import OpenTable, create_lake, create_table
from lake.tail import Tail
from lake.upkeep import Upkeep
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import ALERTS, OUTCOMES, TABLES, AlertRow
from tests.waiting import wait_until

TODAY = date(2026, 11, 20)


def row(number: int, day: date = TODAY) -> AlertRow:
    at = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return AlertRow(
        alert=str(number), subject="s", status="raised", at=at, summary=os.urandom(8).hex(), labels="{}", day=day
    )


def alerts(lake: str) -> list[int]:
    return sorted(map(int, DeltaTable(table_path(lake, ALERTS)).to_pyarrow_table()["alert"].to_pylist()))


def filled(lake: str, commits: int, day: date = TODAY, first: int = 0) -> OpenTable:
    table = OpenTable(create_table(lake, ALERTS))
    for number in range(first, first + commits):
        table.append(to_arrow(ALERTS, [row(number, day)]), "app", number)
    return table


def files(lake: str) -> int:
    return len(DeltaTable(table_path(lake, ALERTS)).file_uris())


@pytest.fixture
def few(monkeypatch) -> int:
    monkeypatch.setattr(upkeep, "MANY_FILES", 10)
    return 10


def test_small_files_become_one_unseen_by_followers(tmp_path, few):
    """A day of many small files."""
    lake, yesterday = str(tmp_path), TODAY - timedelta(days=1)
    table = filled(lake, few)
    filled(lake, few - 1, yesterday, first=few)
    tail = Tail(lake, ALERTS)
    assert len(tail.read()) == 2 * few - 1
    kept = Upkeep(lake, [ALERTS], 1)
    kept.look(compacts=True)
    assert kept.files == {ALERTS.name: few}, "one of today, and those of yesterday, which are too few"
    assert tail.read() == []
    table.newest()
    table.append(to_arrow(ALERTS, [row(2 * few - 1)]), "app", 2 * few)
    assert [found["alert"] for found in tail.read()] == [str(2 * few - 1)]
    assert alerts(lake) == list(range(2 * few))


def test_disabled_compaction_does_nothing(tmp_path, few):
    filled(str(tmp_path), few)
    with Upkeep(str(tmp_path), [ALERTS], 0) as kept:
        wait_until(lambda: kept.files, 20, 0.01)
    kept = Upkeep(str(tmp_path), [ALERTS], 0)
    kept.look(compacts=kept._compacts)
    assert kept.files == {ALERTS.name: few}


def test_maintenance_shares_backlog_over_runs(tmp_path, few, monkeypatch):
    filled(str(tmp_path), 3 * few)
    size = small_files(DeltaTable(table_path(str(tmp_path), ALERTS)))[0].size
    monkeypatch.setattr(upkeep, "MAX_BYTES", (few + 1) * size)
    kept, left = Upkeep(str(tmp_path), [ALERTS], 1), []
    for _ in range(3):
        kept.look(compacts=True)
        left.append(kept.files[ALERTS.name])
    assert 3 * few > left[0] > left[1]
    assert alerts(str(tmp_path)) == list(range(3 * few))


def test_unreadable_table_delays_only_itself(tmp_path, few):
    lake = str(tmp_path)
    filled(lake, few)
    broken = tmp_path / "outcomes" / "_delta_log"
    broken.mkdir(parents=True)
    (broken / f"{0:020}.json").write_text("no JSON\n")
    kept = Upkeep(lake, [OUTCOMES, ALERTS], 1)
    kept.look(compacts=True)
    assert kept.files == {ALERTS.name: 1}


def test_logs_truncated_by_maintenance_not_commits(tmp_path):
    lake, forty_days = str(tmp_path), time.time() - 40 * 86_400
    table = filled(lake, 55)
    logs = Path(table_path(lake, ALERTS)) / "_delta_log"
    for file in logs.iterdir():
        os.utime(file, (forty_days, forty_days))
    table.append(to_arrow(ALERTS, [row(55)]), "app", 55)
    assert (logs / f"{3:020}.json").exists()
    Upkeep(lake, [ALERTS], 0).look(compacts=False)
    assert not (logs / f"{3:020}.json").exists()
    table.newest()
    table.append(to_arrow(ALERTS, [row(56)]), "app", 56)
    assert alerts(lake) == list(range(57))


def test_files_compacted_elsewhere_are_skipped(tmp_path):
    lake = str(tmp_path)
    filled(lake, 5)
    one, other = DeltaTable(table_path(lake, ALERTS)), DeltaTable(table_path(lake, ALERTS))
    group = small_files(one)
    assert compact_group(lake, ALERTS, one, group)
    filled(lake, 1, first=5)
    assert not compact_group(lake, ALERTS, other, group)
    assert alerts(lake) == list(range(6))
    assert len(list(tmp_path.rglob("*.parquet"))) == 7, "five old ones, theirs, the sixth; its own is deleted"


def test_compaction_excluded_during_another(tmp_path, few):
    """One compactor at a time: the table stays closed to others until the first ends."""
    lake = str(tmp_path)
    filled(lake, few)
    kept = Upkeep(lake, [ALERTS], 1)
    with exclude_others(lake, ALERTS):
        kept.look(compacts=True)
        with (
            pytest.raises(Compacting, match="alerts is being compacted by another process"),
            exclude_others(lake, ALERTS),
        ):
            pass
    assert kept.files == {ALERTS.name: few}
    kept.look(compacts=True)
    assert kept.files == {ALERTS.name: 1}


def test_of_two_compactions_begun_at_once_one_fails(tmp_path, monkeypatch):
    lake, other = str(tmp_path), ExitStack()

    def open_late(table: DeltaTable) -> OpenTable:
        monkeypatch.undo()
        other.enter_context(exclude_others(lake, ALERTS))
        return OpenTable(table)

    monkeypatch.setattr(compaction, "OpenTable", open_late)
    with other, pytest.raises(Compacting, match="try again"), exclude_others(lake, ALERTS):
        pass


def rows_of_all(lake: Path) -> dict[str, list[str]]:
    read = {name: DeltaTable(table_path(lake, table)).to_pyarrow_table() for name, table in TABLES.items()}
    return {
        name: sorted(map(repr, found.select(sorted(found.column_names)).to_pylist())) for name, found in read.items()
    }


@pytest.mark.parametrize("version", [1, 2])
def test_older_lake_keeps_rows_after_compaction(tmp_path, monkeypatch, version):
    monkeypatch.setattr(upkeep, "MANY_FILES", 2)
    with tarfile.open(Path(__file__).parents[1] / "streaming" / f"deployment_v{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    lake = tmp_path / "lake"
    create_lake(lake)
    before = rows_of_all(lake)
    kept = Upkeep(str(lake), list(TABLES.values()), 1)
    kept.look(compacts=True)
    assert kept.files["decisions"] == 1
    assert rows_of_all(lake) == before


def test_leased_writers_survive_two_compactors(tmp_path, few):
    """They lose no row and no lease."""
    lake, stop, faults = str(tmp_path), threading.Event(), []
    tables = [LeasedTable(lake, ALERTS, f"shard-{shard}", ("alert",), "executor", "applies") for shard in range(2)]

    def compact() -> None:
        kept = Upkeep(lake, [ALERTS], 1)
        while not stop.is_set():
            kept.look(compacts=True)

    def write(table: LeasedTable, first: int) -> None:
        try:
            for number in range(first, 40, 2):
                table.append([row(number)])
        except Exception as fault:
            faults.append(fault)

    compacting = [threading.Thread(target=compact) for _ in range(2)]
    writing = [threading.Thread(target=write, args=(table, shard)) for shard, table in enumerate(tables)]
    for thread in compacting + writing:
        thread.start()
    for thread in writing:
        thread.join()
    stop.set()
    for thread in compacting:
        thread.join()
    assert faults == []
    assert alerts(lake) == list(range(40))
    assert files(lake) < 40
    for table in tables:
        table.check()


_COMPACTING = """
import sys
from lake import upkeep
from schemas.tables.rows import ALERTS
upkeep.MANY_FILES = 2
while True:
    upkeep.Upkeep(sys.argv[1], [ALERTS], 1).look(compacts=True)
"""


@pytest.mark.process
def test_compaction_kills_neither_lose_nor_double_rows(tmp_path):
    lake, chance = str(tmp_path), random.Random(7)
    table, number = filled(lake, 1), 1
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", _COMPACTING, lake])
        # Kills come at any moment once a compaction was seen.
        more, due = chance.randrange(1, 4), time.monotonic() + 60
        while more and time.monotonic() < due:
            threading.Event().wait(0.03)
            table.newest()
            table.append(to_arrow(ALERTS, [row(number)]), "app", number)
            number += 1
            more -= files(lake) < number
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not more
        assert alerts(lake) == list(range(number))
    Upkeep(lake, [ALERTS], 1).look(compacts=True)
    assert alerts(lake) == list(range(number))
