"""Rows of a table a few at a time: the same as a scan of the whole, in little memory however its files were written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from lake.tables import create_table, stream_columns, table_path
from schemas.tables.arrow import arrow_schema, to_arrow
from schemas.tables.rows import EVENTS, EventRow

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
COLUMNS = ("body", "kafka_offset", "epoch", "day")


def event(number: int, body: str = "{}") -> EventRow:
    """One of three topics and two types, on one of three days."""
    at = NOON + timedelta(days=number % 3)
    return EventRow(
        subject=f"topic://a/b/{number % 3}",
        type="layout" if number % 2 else "consumer",
        cause=None,
        body=body,
        at=at,
        kafka_topic="control-events",
        kafka_partition=0,
        kafka_offset=number,
        kafka_timestamp=at,
        accepted_at=at,
        batch_id=number,
        day=at.date(),
        in_columns=True,
        epoch=number,
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> str:
    """Files of one row group and of many, and some without the columns that are new."""
    lake = str(tmp_path_factory.mktemp("lake"))
    path = table_path(lake, EVENTS)
    old = pa.schema([field for field in arrow_schema(EventRow) if not field.nullable or field.name == "cause"])
    made = to_arrow(EVENTS, [event(number) for number in range(30)])
    write_deltalake(path, made.select(old.names).cast(old), partition_by=["day"])
    table = create_table(lake, EVENTS)
    for start, rows_in_group in ((30, 1_000), (60, 4)):
        write_deltalake(
            table,
            to_arrow(EVENTS, [event(number) for number in range(start, start + 30)]),
            mode="append",
            writer_properties=WriterProperties(max_row_group_size=rows_in_group),
        )
    return lake


def condition(topic: int, type: str, day: int, below: int) -> pc.Expression:
    """Of columns that are asked for, and of some that are not."""
    return (
        (pc.field("subject") == f"topic://a/b/{topic}")
        & (pc.field("type") == type)
        & (pc.field("day") <= pa.scalar((NOON + timedelta(days=day)).date()))
        & (pc.field("kafka_offset") < below)
    )


@given(
    where=st.none()
    | st.builds(
        condition, st.integers(0, 3), st.sampled_from(["layout", "consumer"]), st.integers(-1, 2), st.integers(0, 90)
    ),
    rows=st.integers(1, 40),
)
def test_stream_yields_scan_in_bounded_batches(lake: str, where: pc.Expression | None, rows: int):
    parts = list(stream_columns(lake, EVENTS, COLUMNS, rows, where))
    assert all(0 < len(part) <= rows for part in parts)
    assert all(tuple(part.column_names) == COLUMNS for part in parts)
    table = DeltaTable(table_path(lake, EVENTS)).to_pyarrow_dataset().to_table(columns=list(COLUMNS), filter=where)
    assert by_offset(row for part in parts for row in part.to_pylist()) == by_offset(table.to_pylist())


def by_offset(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["kafka_offset"])


def test_missing_columns_null_even_when_alone(lake: str):
    """Columns that an older release did not write."""
    epochs = [epoch for part in stream_columns(lake, EVENTS, ("epoch",), 7) for epoch in part["epoch"].to_pylist()]
    assert len(epochs) == 90
    assert sorted(epoch for epoch in epochs if epoch is not None) == list(range(30, 90))


def test_of_a_row_group_only_a_part_is_in_memory(tmp_path):
    """Whoever compacts with the defaults of delta-rs makes row groups of a million rows."""
    lake, number, size = str(tmp_path), 6_000, 8_000
    rows = to_arrow(EVENTS, [event(3 * one, f"{one:0{size}}") for one in range(number)])
    write_deltalake(create_table(lake, EVENTS), rows, mode="append")
    del rows
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for part in stream_columns(lake, EVENTS, ("body",), 100, pc.field("kafka_offset") >= 0):
        most, seen = max(most, pa.total_allocated_bytes() - before), seen + len(part)
    assert seen == number
    assert most < number * size / 4
