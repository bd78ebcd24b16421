"""Physical schemas follow the models; rows survive Arrow and Delta; JSON Schemas are what is checked in."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.tables import create_lake, create_table, open_table
from schemas.export import FOLDER, json_schemas
from schemas.tables.arrow import arrow_schema, column_types, to_arrow
from schemas.tables.rows import DEAD_LETTERS, DECISIONS, OUTCOMES, TABLES
from tests.examples import examples

_VALUES = {
    str: st.text(max_size=20),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    datetime: st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(tzinfo=timezone.utc)),  # noqa: DTZ001
    date: st.dates(date(1970, 1, 1), date(2200, 1, 1)),
}


def rows_of(table):
    columns = {
        name: st.one_of(st.none(), _VALUES[kind]) if nullable else _VALUES[kind]
        for name, (kind, nullable) in column_types(table.row).items()
    }
    return st.builds(table.row, **columns)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
@examples(8)
@given(data=st.data())
def test_rows_survive_arrow(table, data):
    rows = data.draw(st.lists(rows_of(table), max_size=3))
    assert [table.row.model_validate(row) for row in to_arrow(table, rows).to_pylist()] == rows


def test_lake_tables_append_only_with_changes(tmp_path):
    lake = create_lake(tmp_path)
    assert set(lake) == set(TABLES)
    for name, delta in lake.items():
        configuration = delta.metadata().configuration
        assert configuration["delta.appendOnly"] == "true"
        assert configuration["delta.enableChangeDataFeed"] == "true"
        assert pa.schema(delta.schema().to_arrow()).names == arrow_schema(TABLES[name].row).names


def test_making_a_table_again_leaves_it_as_it_is(tmp_path):
    first = create_table(tmp_path, DECISIONS)
    assert create_table(tmp_path, DECISIONS).version() == first.version() == 0
    assert open_table(tmp_path, OUTCOMES) is None


def test_dead_letters_may_lack_key_and_value():
    assert arrow_schema(DEAD_LETTERS.row).field("raw").nullable
    assert not arrow_schema(DEAD_LETTERS.row).field("reason").nullable


def test_committed_json_schemas_match_models():
    checked_in = {file.name: file.read_text() for file in FOLDER.glob("*.json")}
    assert checked_in == json_schemas(), "run: python -m schemas.export"
