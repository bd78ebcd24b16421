"""This release writes to a lake that the one before it made."""

from __future__ import annotations

import tarfile
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from lake import tables
from lake.tables import create_lake, create_table, table_path
from lake.tail import Tail
from schemas.tables.arrow import arrow_schema, to_arrow
from schemas.tables.rows import DEAD_LETTERS, DECISIONS, SEGMENT_LOAD, TABLES, DecisionRow
from tests.local.lake import dead_letter

AT = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
STRICT = pa.schema(
    [field.with_nullable(False) if field.name == "layout_epoch" else field for field in arrow_schema(DECISIONS.row)]
)
"""The columns of `decisions` before `layout_epoch` became optional."""


def row(identity: str, layout_epoch: int | None) -> DecisionRow:
    return DecisionRow(
        decision_id=identity,
        family="autoscale",
        subject="topic://a/b/c",
        action="split",
        arguments="{}",
        reason="cold",
        trigger="tick",
        layout_epoch=layout_epoch,
        policy_digest="",
        decided_at=AT,
        inputs="{}",
        gates="[]",
        engine_version="1",
        batch_id=1,
        seq=1,
        day=AT.date(),
    )


@pytest.fixture
def older(tmp_path) -> DeltaTable:
    """`decisions` as the release before made it, with a row."""
    path = table_path(tmp_path, DECISIONS)
    made = DeltaTable.create(
        path, schema=STRICT, partition_by=["day"], configuration=DECISIONS.properties, name=DECISIONS.name
    )
    write_deltalake(made, pa.Table.from_pylist([row("old", 3).model_dump()], schema=STRICT), mode="append")
    return made


def epochs(lake) -> dict[str, int | None]:
    found = DeltaTable(table_path(lake, DECISIONS)).to_pyarrow_table(columns=["decision_id", "layout_epoch"])
    return {one["decision_id"]: one["layout_epoch"] for one in found.to_pylist()}


@pytest.mark.parametrize("version", [1, 2])
def test_older_lake_opens_with_all_rows(tmp_path, version):
    with tarfile.open(Path(__file__).parents[1] / "streaming" / f"deployment_v{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    lake = tmp_path / "lake"
    before = epochs(lake)
    write_deltalake(create_lake(lake)[DECISIONS.name], to_arrow(DECISIONS, [row("new", None)]), mode="append")
    assert len(before) > 1
    assert epochs(lake) == before | {"new": None}


def test_relaxed_column_takes_nulls_and_keeps_rows(tmp_path, older):
    table = create_lake(tmp_path)[DECISIONS.name]
    write_deltalake(table, to_arrow(DECISIONS, [row("new", None), row("layout", 4)]), mode="append")
    assert epochs(tmp_path) == {"old": 3, "new": None, "layout": 4}
    assert table.protocol() == older.protocol()
    assert table.metadata().configuration == DECISIONS.properties


def test_a_table_is_relaxed_once(tmp_path, older):
    version = create_table(tmp_path, DECISIONS).version()
    assert create_table(tmp_path, DECISIONS).version() == version == older.version() + 1


def test_a_tail_goes_on_over_the_change(tmp_path, older):
    tail = Tail(str(tmp_path), DECISIONS)
    assert [one["decision_id"] for one in tail.read()] == ["old"]
    write_deltalake(create_table(tmp_path, DECISIONS), to_arrow(DECISIONS, [row("new", None)]), mode="append")
    assert [(one["decision_id"], one["layout_epoch"]) for one in tail.read()] == [("new", None)]


def test_added_column_is_null_in_old_rows(tmp_path):
    new = arrow_schema(DEAD_LETTERS.row)
    without = pa.schema([field for field in new if field.name != "raw_sha256"])
    row = dead_letter("old", 1).model_dump(exclude={"raw_sha256"})
    made = DeltaTable.create(
        table_path(tmp_path, DEAD_LETTERS), schema=without, partition_by=["day"], configuration=DEAD_LETTERS.properties
    )
    write_deltalake(made, pa.Table.from_pylist([row], schema=without), mode="append")
    tail = Tail(str(tmp_path), DEAD_LETTERS)
    assert [one["reason"] for one in tail.read()] == ["old"]
    table = create_table(tmp_path, DEAD_LETTERS)
    version = table.version()
    sent = dead_letter("new", 2).model_copy(update={"raw_sha256": "ab"})
    write_deltalake(table, to_arrow(DEAD_LETTERS, [sent]), mode="append")
    found = DeltaTable(table_path(tmp_path, DEAD_LETTERS)).to_pyarrow_table().to_pylist()
    assert {one["reason"]: one["raw_sha256"] for one in found} == {"old": None, "new": "ab"}
    assert [one["reason"] for one in tail.read()] == ["new"]
    assert (create_table(tmp_path, DEAD_LETTERS).version(), table.protocol()) == (version + 1, made.protocol())


def made_formerly(lake, **more: str) -> DeltaTable:
    """`segment_load` with the properties of older releases, and those that somebody has set since."""
    properties = SEGMENT_LOAD.properties | SEGMENT_LOAD.former_properties | more
    return DeltaTable.create(
        table_path(lake, SEGMENT_LOAD), arrow_schema(SEGMENT_LOAD.row), partition_by=["day"], configuration=properties
    )


def test_older_properties_replaced_once(tmp_path):
    former = made_formerly(tmp_path)
    assert former.metadata().configuration["delta.logRetentionDuration"] == "interval 2 days"
    table = create_table(tmp_path, SEGMENT_LOAD)
    assert table.metadata().configuration == SEGMENT_LOAD.properties
    assert table.protocol() == former.protocol()
    assert create_table(tmp_path, SEGMENT_LOAD).version() == table.version() == 1


def test_properties_that_a_person_has_set_stay(tmp_path):
    made_formerly(tmp_path, **{"delta.logRetentionDuration": "interval 90 days"})
    found = create_table(tmp_path, SEGMENT_LOAD).metadata().configuration
    assert found["delta.logRetentionDuration"] == "interval 90 days"
    assert found["delta.deletedFileRetentionDuration"] == "interval 1 hours"


def test_file_kept_while_followed_one_to_seven_days():
    """A file stays as long as commits can be followed, within these limits."""
    assert {name: table.file_hours for name, table in TABLES.items()} == {
        "decisions": 168,
        "holds": 168,
        "segment_load": 24,
        "events": 24,
        "dead_letters": 24,
        "batches": 24,
        "outcomes": 168,
        "brakes": 168,
        "waits": 168,
        "alerts": 168,
    }


def test_concurrent_writer_is_no_obstacle(tmp_path, older, monkeypatch):
    real, faults = tables.DeltaTable.alter.fget, []

    class Racing:
        def __init__(self, table):
            self.table = table

        def drop_column_not_null(self, name):
            if not faults:
                faults.append(name)
                raise CommitFailedError("Metadata changed since last commit.")
            real(self.table).drop_column_not_null(name)

    monkeypatch.setattr(tables.DeltaTable, "alter", property(Racing))
    write_deltalake(create_table(tmp_path, DECISIONS), to_arrow(DECISIONS, [row("new", None)]), mode="append")
    assert (faults, epochs(tmp_path)["new"]) == (["layout_epoch"], None)


def test_unalterable_table_takes_complete_rows(tmp_path, older, monkeypatch):
    class ReadOnly:
        def __init__(self, table):
            return

        def drop_column_not_null(self, name):
            raise DeltaError("permission denied")

    monkeypatch.setattr(tables.DeltaTable, "alter", property(ReadOnly))
    table = create_table(tmp_path, DECISIONS)
    write_deltalake(table, to_arrow(DECISIONS, [row("new", 4)]), mode="append")
    assert epochs(tmp_path) == {"old": 3, "new": 4}
    with pytest.raises(DeltaError, match="layout_epoch"):
        write_deltalake(table, to_arrow(DECISIONS, [row("null", None)]), mode="append")


def test_previous_release_writes_relaxed_table(tmp_path, older):
    create_lake(tmp_path)
    rows = pa.Table.from_pylist([row("late", 5).model_dump()], schema=STRICT)
    write_deltalake(table_path(tmp_path, DECISIONS), rows, mode="append")
    assert epochs(tmp_path) == {"old": 3, "late": 5}
    assert set(create_lake(tmp_path)) == set(TABLES)
