"""A tail gives every row once and in order, even when the table's log is cut meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import example, given
from hypothesis import strategies as st

from lake.tables import create_table
from lake.tail import Tail, VersionUnavailable, committed_rows, newest_commit, newest_rows
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DEAD_LETTERS
from tests.examples import examples
from tests.local.lake import dead_letter, write


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake")


def test_tail_gives_rows_once_in_commit_order(lake):
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
def test_only_truncated_versions_are_skipped(lake, forgotten):
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


def test_scan_gives_whole_table_in_order(lake):
    write(lake, dead_letter("late", 2), dead_letter("early", 1))
    tail = scanning(lake)
    assert tail.read() == [{"reason": "early", "kafka_offset": 1000}, {"reason": "late", "kafka_offset": 2000}]
    write(lake, dead_letter("second", 4), dead_letter("first", 3))
    assert reasons(tail.read()) == ["first", "second"]


def test_scan_skips_known_rows_changes_do_not(lake):
    write(lake, dead_letter("known", 1), dead_letter("new", 2))
    tail = scanning(lake)
    assert reasons(tail.read({"known"})) == ["new"]
    write(lake, dead_letter("known", 3))
    assert reasons(tail.read({"known"})) == ["known"]


@pytest.mark.parametrize(("backlog", "expected"), [(None, ["r0", "r1", "r2", "r3", "r4"]), (3000, ["r3", "r4"])])
def test_tail_behind_truncated_log_catches_up(lake, backlog, expected):
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


def compacted_and_vacuumed(lake: str) -> None:
    """As the upkeep does it, and after the seven days that a removed file is kept."""
    delta = DeltaTable(f"{lake}/dead_letters")
    delta.optimize.compact()
    assert delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_vacuumed_commits_skipped_and_later_ones_given(lake, after):
    for number in range(5):
        write(lake, dead_letter(f"r{number}", number))
    compacted_and_vacuumed(lake)
    for number in range(5, 5 + after):
        write(lake, dead_letter(f"r{number}", number))
    tail = Tail(lake, DEAD_LETTERS)
    assert reasons(tail.read()) == [f"r{number}" for number in range(5, 5 + after)]
    write(lake, dead_letter("next", 9))
    assert reasons(tail.read()) == ["next"]
    assert reasons(newest_rows(DeltaTable(f"{lake}/dead_letters"), 100)) == [
        *(f"r{number}" for number in range(5, 5 + after)),
        "next",
    ]


@pytest.mark.parametrize(("backlog", "expected"), [(None, ["r0", "r1", "r2", "r3", "r4", "r5"]), (3000, ["r5"])])
def test_a_tail_whose_next_files_are_gone_catches_up(lake, backlog, expected):
    tail = Tail(lake, DEAD_LETTERS, order=("kafka_offset",), backlog=backlog)
    write(lake, dead_letter("r0", 0))
    tail.read()
    for number in range(1, 5):
        write(lake, dead_letter(f"r{number}", number))
    compacted_and_vacuumed(lake)
    write(lake, dead_letter("r5", 5))
    assert reasons(tail.read()) == expected
    assert tail.scanned == (backlog is None)
    assert tail.read() == []


def test_unreadable_table_is_not_treated_as_history(lake):
    tail = Tail(lake, DEAD_LETTERS)
    write(lake, dead_letter("r0", 0))
    [file] = Path(lake).glob("dead_letters/day=*/*.parquet")
    content = file.read_bytes()
    file.write_bytes(b"no parquet at all, and long enough for a footer")
    with pytest.raises(DeltaError) as found:
        tail.read()
    assert not isinstance(found.value, VersionUnavailable)
    file.write_bytes(content)
    assert reasons(tail.read()) == ["r0"]


def test_rows_of_vacuumed_commit_are_forgotten(lake):
    write(lake, dead_letter("r0", 0))
    table = DeltaTable(f"{lake}/dead_letters")
    assert newest_commit(table, "kafka_offset", 0) is not None
    write(lake, dead_letter("r1", 1))
    compacted_and_vacuumed(lake)
    assert newest_commit(DeltaTable(f"{lake}/dead_letters"), "kafka_offset", 0) is None


STEPS = st.lists(st.sampled_from(["append", "append", "look", "compact", "vacuum", "begin anew"]), max_size=14)


@examples(5)
@given(STEPS)
@example(["append", "look", "append", "append", "compact", "vacuum"])
def test_tail_gives_each_row_once_despite_maintenance(steps):
    """Covers compaction, vacuum and new starts."""
    with TemporaryDirectory() as folder:
        lake = str(Path(folder) / "lake")
        table = create_table(lake, DEAD_LETTERS)
        tail, written, given_rows = scanning(lake), [], []
        for step in [*steps, "append", "look"]:
            if step == "append":
                rows = [dead_letter(f"r{len(written) + number}", len(written) + number) for number in range(2)]
                write(lake, *rows)
                written += [row.reason for row in rows]
            elif step == "look":
                given_rows += reasons(tail.read(set(given_rows)))
                assert given_rows == written
            elif step == "begin anew":
                tail = scanning(lake)
            else:
                table.update_incremental()
                if step == "compact":
                    table.optimize.compact()
                else:
                    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@examples(5)
@given(STEPS)
@example(["append", "look", "append", "append", "compact", "vacuum"])
def test_backward_tail_gives_each_available_row_once(steps):
    with TemporaryDirectory() as folder:
        lake = str(Path(folder) / "lake")
        table = create_table(lake, DEAD_LETTERS)
        tail, written, given_rows, kept_from = Tail(lake, DEAD_LETTERS, order=("kafka_offset",)), [], [], 0
        for step in [*steps, "append", "look"]:
            if step == "append":
                write(lake, dead_letter(f"r{len(written)}", len(written)))
                written.append(f"r{len(written)}")
            elif step == "look":
                found = reasons(tail.read())
                assert found == written[len(written) - len(found) :]
                assert not set(found) & set(given_rows)
                given_rows += found
                assert set(given_rows) >= set(written[kept_from:])
            elif step in ("compact", "vacuum"):
                table.update_incremental()
                if step == "compact":
                    table.optimize.compact()
                elif table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False):
                    kept_from = len(written)
