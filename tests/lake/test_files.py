"""Files of a table that one process writes and another commits: rows, bounds and leftovers."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from lake import files
from lake.files import RowsFile, WrittenFile, table_path, write_file
from lake.maintenance import delete_unused
from lake.statistics import MAX_TEXT, Statistics, text_above
from lake.tables import OpenTable, create_table
from lake.tail import Tail, newest_commit
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import HOLDS, SEGMENT_LOAD, SegmentLoadRow

AT = datetime(2026, 11, 22, 8, 0, 0, 123_456, tzinfo=timezone.utc)


def loads(*offsets: int, topic: str = "topic://acme/shop/orders") -> pa.Table:
    return to_arrow(
        SEGMENT_LOAD,
        [
            SegmentLoadRow(
                topic=topic,
                segment_id=offset % 3,
                msg_rate_in=0.5 * offset,
                bytes_rate_in=1.0,
                msg_rate_out=2.0,
                bytes_rate_out=3.0,
                reporter="broker-3",
                sampled_at=AT + timedelta(seconds=offset),
                accepted_at=AT,
                cause="first",
                kafka_partition=0,
                kafka_offset=offset,
                kafka_timestamp=None,
                batch_id=7,
                day=AT.date(),
            )
            for offset in offsets
        ],
    )


@pytest.fixture(params=["a folder", "a storage of delta-rs"])
def lake(request, tmp_path, monkeypatch) -> str:
    """A lake in a local folder; or in the same through delta-rs, as at a URL."""
    if request.param == "a folder":
        return str(tmp_path)
    monkeypatch.setattr(files, "_local", lambda folder: None)
    return f"file://{tmp_path}"


def test_file_rows_committed_at_once_and_followed(lake, tmp_path):
    table = OpenTable(create_table(tmp_path, SEGMENT_LOAD))
    followed = Tail(str(tmp_path), SEGMENT_LOAD, order=("kafka_offset",))
    assert followed.read() == []
    file = RowsFile(lake, SEGMENT_LOAD, AT.date())
    file.write(loads(5, 3))
    file.write(loads(4))
    file.close()
    added = WrittenFile.of(lake, SEGMENT_LOAD, file.path)
    table.add([added, write_file(lake, SEGMENT_LOAD, loads(9))], "app", 7, {"lease": 2})
    assert (table.newest_transactions("app", "lease", "none"), table.table.version()) == ([7, 2, None], 1)
    rows = [{name: value for name, value in row.items() if name[0] != "_"} for row in followed.read()]
    assert rows == loads(3, 4, 5, 9).to_pylist()
    assert pa.concat_tables(added.chunks(loads(5).column_names)).equals(loads(5, 3, 4))
    assert sum(batch.num_rows for batch in newest_commit(table.newest(), "batch_id", 7)) == 4
    actions = table.table.get_add_actions(flatten=True)
    assert sorted(actions["num_records"].to_pylist()) == [1, 3]


def test_file_bounds_cover_all_rows(tmp_path):
    """No reader skips a file that has what it asks for."""
    file = RowsFile(str(tmp_path), SEGMENT_LOAD, AT.date())
    for offset, topic in ((5, "b"), (1, "ä"), (2, "x" * 300)):
        file.write(loads(offset, topic=topic))
    file.close()
    written = WrittenFile.of(str(tmp_path), SEGMENT_LOAD, file.path)
    assert written.bounds("kafka_offset") == (1, 5)
    assert written.bounds("msg_rate_in") == (0.5, 2.5)
    assert written.bounds("accepted_at") == ("2026-11-22T08:00:00.123Z", "2026-11-22T08:00:00.124Z")
    assert written.bounds("topic") == ("b", "ä")
    assert written.bounds("kafka_timestamp") == (None, None)
    table = OpenTable(create_table(tmp_path, SEGMENT_LOAD))
    table.add([written], "app", 1)
    rows = DeltaTable(table_path(tmp_path, SEGMENT_LOAD)).to_pyarrow_dataset()
    for name in rows.schema.names:
        for value in set(rows.to_table()[name].to_pylist()):
            asked = pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value)
            assert rows.to_table(filter=asked).num_rows, (name, value)


@given(
    st.lists(st.one_of(st.none(), st.floats(), st.just(1e400)), min_size=1),
    st.lists(st.text(max_size=70)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
)
def test_bounds_enclose_all_values_as_json(numbers, texts, instants):
    schema = pa.schema([("number", pa.float64()), ("text", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    found = Statistics(schema)
    texts = [text.encode("utf-8", "replace").decode() * 2 for text in texts]
    for rows in (
        {"number": numbers, "text": [None] * len(numbers), "at": [None] * len(numbers)},
        {"number": [None] * len(texts), "text": texts, "at": [None] * len(texts)},
        {"number": [None] * len(instants), "text": [None] * len(instants), "at": pa.array(instants, pa.int64())},
    ):
        found.add_rows(pa.table({name: pa.array(rows[name]).cast(schema.field(name).type) for name in rows}, schema))
    said = json.loads(found.to_json(), parse_constant=lambda text: pytest.fail(text))
    assert said["numRecords"] == len(numbers) + len(texts) + len(instants)
    told = [number for number in numbers if number is not None and not math.isnan(number)]
    if told and all(map(math.isfinite, told)):
        assert (said["minValues"]["number"], said["maxValues"]["number"]) == (min(told), max(told))
    if texts:
        low, high = said["minValues"]["text"], said["maxValues"]["text"]
        assert all(low.encode() <= text.encode() <= high.encode() for text in texts)
        assert len(low) <= MAX_TEXT
    if instants:
        assert said["minValues"]["at"] <= said["maxValues"]["at"]


def test_text_of_last_characters_is_own_bound():
    assert text_above("\U0010ffff" * 65) == "\U0010ffff" * 65
    assert text_above("\ud7ff" * 65) == "\ud7ff" * 63 + "\ue000"


def test_rows_of_another_day_are_refused(tmp_path):
    file = RowsFile(str(tmp_path), SEGMENT_LOAD, date(2026, 11, 21))
    with pytest.raises(ValueError, match="another day than 2026-11-21"):
        file.write(loads(1))


def test_uncommitted_rows_invisible_and_vacuumed(tmp_path):
    table = OpenTable(create_table(tmp_path, SEGMENT_LOAD))
    kept, left = (write_file(str(tmp_path), SEGMENT_LOAD, loads(number)) for number in (1, 2))
    begun = RowsFile(str(tmp_path), SEGMENT_LOAD, AT.date())
    table.add([kept], "app", 1)
    assert table.newest().to_pyarrow_table()["kafka_offset"].to_pylist() == [1]
    assert delete_unused(str(tmp_path), SEGMENT_LOAD, dry_run=True) == []
    deleted = delete_unused(str(tmp_path), SEGMENT_LOAD, dry_run=False, keep_hours=0)
    assert {path.rpartition("/")[2] for path in deleted} == {
        path.rpartition("/")[2] for path in (left.path, begun.path)
    }
    assert table.newest().to_pyarrow_table()["kafka_offset"].to_pylist() == [1]


def test_a_file_of_other_columns_is_refused(tmp_path):
    create_table(tmp_path, HOLDS)
    written = write_file(str(tmp_path), SEGMENT_LOAD, loads(1))
    with pytest.raises(files.FileUnfit, match="other columns"):
        WrittenFile.of(str(tmp_path), HOLDS, f"../segment_load/{written.path}")
