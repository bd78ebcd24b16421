"""A table that is kept open sees every commit, its own and others', and is reopened now and then."""

from __future__ import annotations

from deltalake import DeltaTable, write_deltalake

from lake import tables
from lake.tables import OPEN_FOR_COMMITS, OpenTable, create_table, table_path
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES

OPEN_FOR = 6


def commit(table: DeltaTable | str) -> None:
    write_deltalake(table, arrow_schema(BATCHES.row).empty_table(), mode="append")


def test_commits_visible_at_once_across_reopening(tmp_path, monkeypatch):
    """Its own and those of others."""
    monkeypatch.setattr(tables, "OPEN_FOR_COMMITS", OPEN_FOR)
    opened = OpenTable(create_table(tmp_path, BATCHES))
    kept = opened.newest()
    handles = set()
    for number in range(1, 2 * OPEN_FOR + 2):
        commit(opened.newest() if number % 2 else table_path(tmp_path, BATCHES))
        table = opened.newest()
        assert table.version() == number
        assert (table is kept) == (number < OPEN_FOR)
        handles.add(id(table))
    assert len(handles) > 1


def test_a_table_nobody_commits_to_is_opened_once(tmp_path):
    opened = OpenTable(create_table(tmp_path, BATCHES))
    assert len({id(opened.newest()) for _ in range(3 * OPEN_FOR_COMMITS)}) == 1
