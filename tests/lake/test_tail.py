"""A tail gives every row once and in order, even when the table's log is cut meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from lake.tables import create_table
from lake.tail import Tail, committed_rows, newest_rows
from schemas.arrow import to_arrow
from schemas.tables import DEAD_LETTERS
from tests.lab.lake import dead_letter, write


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


def test_tail_gives_every_row_once_and_in_commit_order(lake):
    tail = Tail(lake, DEAD_LETTERS)
    seen = []
    for number in range(12):
        write(lake, dead_letter(f"r{number}a", number), dead_letter(f"r{number}b", number))
        if number % 5 == 4:
            seen += tail.read()
    seen += tail.read()
    assert [row["reason"] for row in seen] == [f"r{number}{letter}" for number in range(12) for letter in "ab"]
    assert tail.read() == []


def test_tail_looks_back_no_further_than_it_is_told(lake):
    for number in range(9):
        write(lake, dead_letter(f"r{number}", number))
    assert [row["reason"] for row in Tail(lake, DEAD_LETTERS, backlog=2).read()] == ["r6", "r7", "r8"]


@pytest.mark.parametrize("forgotten", [1, 5, 9])
def test_versions_that_the_log_has_forgotten_are_left_out_and_no_others(lake, forgotten):
    for number in range(9):
        write(lake, dead_letter(f"r{number}", number))
    DeltaTable(f"{lake}/dead_letters").create_checkpoint()
    for version in range(forgotten):
        (Path(lake) / "dead_letters" / "_delta_log" / f"{version:020}.json").unlink()
    rows = committed_rows(DeltaTable(f"{lake}/dead_letters"), 0)
    assert [row["reason"] for row in rows] == [f"r{number}" for number in range(9)][forgotten - 1 :]


def test_compaction_adds_nothing_to_a_tail(lake):
    tail = Tail(lake, DEAD_LETTERS)
    for number in range(4):
        write(lake, dead_letter(f"r{number}", number))
    assert len(tail.read()) == 4
    DeltaTable(f"{lake}/dead_letters").optimize.compact()
    assert tail.read() == []
    write(lake, dead_letter("r4", 4))
    assert [row["reason"] for row in tail.read()] == ["r4"]


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (7, 7), (100, 50)])
def test_newest_rows_are_the_last_committed_ones(lake, limit, expected):
    table = create_table(lake, DEAD_LETTERS)
    for number in range(25):
        write_deltalake(
            table, to_arrow(DEAD_LETTERS, [dead_letter(f"{number}{half}", number) for half in "ab"]), mode="append"
        )
    rows = newest_rows(DeltaTable(f"{lake}/dead_letters"), limit)
    assert len(rows) == expected
    assert [row["reason"] for row in rows[-2:]] == ["24a", "24b"][-expected:] if expected else rows == []


def test_commit_times_are_aware_and_of_this_minute(lake):
    write(lake, dead_letter("r", 1))
    [row] = Tail(lake, DEAD_LETTERS).read()
    assert abs(datetime.now(timezone.utc) - row["_commit_timestamp"]) < timedelta(minutes=1)


def scanning(lake: str) -> Tail:
    return Tail(lake, DEAD_LETTERS, ("reason", "kafka_offset"), order=("kafka_offset",), backlog=None)


def reasons(rows) -> list[str]:
    return [row["reason"] for row in rows]


def test_a_scan_gives_the_whole_table_in_order_and_cut_to_its_columns(lake):
    write(lake, dead_letter("late", 2), dead_letter("early", 1))
    tail = scanning(lake)
    assert tail.read() == [{"reason": "early", "kafka_offset": 1000}, {"reason": "late", "kafka_offset": 2000}]
    write(lake, dead_letter("second", 4), dead_letter("first", 3))
    assert reasons(tail.read()) == ["first", "second"]


def test_a_scan_leaves_out_what_is_known_and_a_look_at_changes_does_not(lake):
    write(lake, dead_letter("known", 1), dead_letter("new", 2))
    tail = scanning(lake)
    assert reasons(tail.read({"known"})) == ["new"]
    write(lake, dead_letter("known", 3))
    assert reasons(tail.read({"known"})) == ["known"]


@pytest.mark.parametrize(("backlog", "expected"), [(None, ["r0", "r1", "r2", "r3", "r4"]), (3000, ["r3", "r4"])])
def test_a_tail_whose_place_the_log_has_forgotten_catches_up(lake, backlog, expected):
    tail = Tail(lake, DEAD_LETTERS, order=("kafka_offset",), backlog=backlog)
    write(lake, dead_letter("r0", 0))
    tail.read()
    for number in range(1, 5):
        write(lake, dead_letter(f"r{number}", number))
    DeltaTable(f"{lake}/dead_letters").create_checkpoint()
    for version in range(4):
        (Path(lake) / "dead_letters" / "_delta_log" / f"{version:020}.json").unlink()
    assert reasons(tail.read()) == expected
    assert tail.read() == []


def test_a_look_that_fails_is_made_up_for_by_the_next(lake, monkeypatch):
    tail = Tail(lake, DEAD_LETTERS)
    write(lake, dead_letter("r0", 0))
    with monkeypatch.context() as broken:
        broken.setattr(DeltaTable, "load_cdf", lambda *_, **__: (_ for _ in ()).throw(OSError("the disk is away")))
        with pytest.raises(OSError, match="the disk is away"):
            tail.read()
    assert reasons(tail.read()) == ["r0"]
