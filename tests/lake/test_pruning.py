"""Files that a condition rules out are left out as delta-rs does it, and no row that fulfils it is."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from lake.files import dataset_of, read_table

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("number", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("names", pa.int64()),
        ("rate", pa.float64()),
    ]
)


def instant(number: int) -> datetime:
    """An instant with microseconds, which Delta's statistics do not have."""
    return NOON + timedelta(milliseconds=number, microseconds=7 * number + 1)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> DeltaTable:
    """Forty files on three days, with columns that none, some or all rows of a file have."""
    folder = tmp_path_factory.mktemp("lake")
    for first in range(0, 80, 2):
        rows = [
            {
                "day": date(2026, 11, 20 + first % 3),
                "number": number,
                "at": instant(number),
                "name": ("x" * (number % 50) + str(number))
                if (first // 2) % 3 and number % (first % 4 + 1) == 0
                else None,
                "names": None if first % 5 == 0 else number,
                "rate": float("nan") if number == 21 else number / 2,
            }
            for number in (first, first + 1)
        ]
        write_deltalake(folder, pa.Table.from_pylist(rows, SCHEMA), mode="append", partition_by=["day"])
    return DeltaTable(folder)


NUMBERS = st.integers(-1, 81)
LEAVES = (
    st.builds(lambda number: pc.field("number") == number, NUMBERS)
    | st.builds(lambda number: pc.field("number") > number, NUMBERS)
    | st.builds(lambda number: pc.field("at") == pa.scalar(instant(number)), NUMBERS)
    | st.builds(lambda number: pc.field("at") >= pa.scalar(instant(number)), NUMBERS)
    | st.builds(lambda number: pc.field("at") < pa.scalar(instant(number)), NUMBERS)
    | st.builds(lambda number: pc.field("name") == "x" * (number % 50) + str(number), NUMBERS)
    | st.builds(lambda number: pc.field("rate") <= number, NUMBERS)
    | st.builds(lambda number: pc.field("day") <= date(2026, 11, number), st.integers(18, 24))
    | st.builds(lambda numbers: pc.field("names").isin(numbers), st.lists(NUMBERS, max_size=3))
    | st.sampled_from([pc.field("name").is_null(), pc.field("names").is_valid(), pc.field("number").is_null()])
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda some: (
        st.builds(lambda one, other: one & other, some, some)
        | st.builds(lambda one, other: one | other, some, some)
        | st.builds(lambda one: ~one, some)
    ),
    max_leaves=4,
)


@given(where=CONDITIONS)
def test_condition_opens_the_files_of_delta_rs(table, where):
    theirs, ours = table.to_pyarrow_dataset(), dataset_of(table, where)
    assert [file.path for file in ours.get_fragments(where)] == [file.path for file in theirs.get_fragments(where)]
    assert str(ours.to_table(filter=where).to_pylist()) == str(theirs.to_table(filter=where).to_pylist())


def test_every_row_is_read_without_a_condition(table):
    assert sorted(row["number"] for row in read_table(table).to_pylist()) == list(range(80))
    assert read_table(table, ["number"], [("day", "=", date(2026, 11, 21)), ("number", "<", 6)]).to_pydict() == {
        "number": [4, 5]
    }


def test_table_with_deletion_vectors_is_refused(table, monkeypatch):
    """Their rows are still in the files."""
    needed = table.protocol()._replace(min_reader_version=3, reader_features=["deletionVectors"])
    monkeypatch.setattr(type(table), "protocol", lambda _: needed)
    with pytest.raises(Exception, match="deletionVectors"):
        dataset_of(table)
