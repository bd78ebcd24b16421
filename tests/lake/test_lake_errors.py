"""A table that this release cannot use is refused before anything is written, in a sentence that says what to do."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lake.tables import LakeError, create_lake, create_table
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import ALERTS, TABLES


def make(lake, columns: pa.Schema) -> None:
    (lake / ALERTS.name).mkdir(parents=True)
    DeltaTable.create(str(lake / ALERTS.name), schema=columns, partition_by=["day"])


def change_protocol(lake, **protocol) -> None:
    create_table(lake, ALERTS)
    log = lake / ALERTS.name / "_delta_log" / f"{1:020}.json"
    log.write_text(json.dumps({"protocol": protocol}) + "\n")


def refusal(lake) -> str:
    with pytest.raises(LakeError) as caught:
        create_lake(lake)
    (said,) = str(caught.value).splitlines()
    assert str(lake / ALERTS.name) in said
    return said


def test_newer_table_refused_by_columns(tmp_path):
    make(tmp_path, arrow_schema(ALERTS.row).append(pa.field("colour", pa.string())))
    said = refusal(tmp_path)
    assert "does not know: colour. A newer release made it: run that one" in said
    assert DeltaTable(str(tmp_path / ALERTS.name)).version() == 0


def test_older_table_refused_with_missing_columns(tmp_path):
    columns = arrow_schema(ALERTS.row)
    make(tmp_path, columns.remove(columns.get_field_index("labels")).remove(columns.get_field_index("at")))
    assert "lacks columns of this release: at, labels. An older release made it: add them" in refusal(tmp_path)


def test_retyped_column_refused_with_both_types(tmp_path):
    columns = arrow_schema(ALERTS.row)
    make(tmp_path, columns.set(columns.get_field_index("at"), pa.field("at", pa.int64(), nullable=False)))
    assert "column at as int64 not null, this release writes timestamp[us, tz=UTC] not null" in refusal(tmp_path)


def test_unused_nullable_column_accepted(tmp_path):
    make(tmp_path, pa.schema([field.with_nullable(True) for field in arrow_schema(ALERTS.row)]))
    assert set(create_lake(tmp_path)) == set(TABLES)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 6}, "asks for writer version 6"),
        (
            {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]},
            "asks for the features domainMetadata, rowTracking",
        ),
        (
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["fooBar"], "writerFeatures": ["fooBar"]},
            "cannot be opened: Kernel error: Unsupported: Feature 'fooBar'",
        ),
        (
            {"minReaderVersion": 4, "minWriterVersion": 8},
            "cannot be opened: Kernel error: Unsupported: Unsupported min",
        ),
    ],
)
def test_a_newer_delta_protocol_is_refused_by_name(tmp_path, protocol, said):
    change_protocol(tmp_path, **protocol)
    assert said in refusal(tmp_path)


def test_known_protocol_features_accepted(tmp_path):
    change_protocol(tmp_path, minReaderVersion=1, minWriterVersion=7, writerFeatures=["appendOnly", "changeDataFeed"])
    assert set(create_lake(tmp_path)) == set(TABLES)


def test_a_damaged_log_is_told_in_one_line(tmp_path):
    create_table(tmp_path, ALERTS)
    (tmp_path / ALERTS.name / "_delta_log" / f"{0:020}.json").write_text("garbage")
    assert "put a backup in its place" in refusal(tmp_path)
