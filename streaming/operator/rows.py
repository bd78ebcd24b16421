"""The operator's output as Arrow tables in exactly the tables' schemas.

Stage: in the sink, and in the workers that write files. Instants arrive as milliseconds and become microsecond
timestamps; `batch_id` and `day` are added here. Rows are sorted, so that their order does not depend on Spark.
"""

import base64
from collections.abc import Iterable
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core

from engine.kernel.records import COLUMNS, LOAD, LOAD_SCHEMA
from schemas.tables.arrow import arrow_schema, column_types
from schemas.tables.digests import checksums_of_batches
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

_DAY_MS = 86_400_000

_OWN_TIME = {
    DECISIONS.name: "decided_at",
    HOLDS.name: "since",
    EVENTS.name: "accepted_at",
    DEAD_LETTERS.name: "rejected_at",
    BATCHES.name: "batch_at",
}
"""Column from which a row's `day` is computed."""

_ORDER = {
    DECISIONS.name: ("subject", "seq"),
    HOLDS.name: ("subject", "seq"),
    EVENTS.name: ("kafka_topic", "kafka_partition", "kafka_offset"),
    DEAD_LETTERS.name: ("kafka_topic", "kafka_partition", "kafka_offset", "sample"),
    SEGMENT_LOAD.name: ("kafka_partition", "kafka_offset", "segment_id", "topic"),
    BATCHES.name: ("batch_id",),
}


TABLE_OF = {LOAD: SEGMENT_LOAD, **{table.name: table for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS)}}
"""Table by kind of the operator's output."""
KIND_OF = {table.name: kind for kind, table in TABLE_OF.items()}


def rows_of(table: Table, bodies: Iterable[bytes], now: int, batch_id: int) -> pa.Table:
    """Return the rows of a table from bodies of its kind, sorted; `now` is the batch's time, milliseconds."""
    return _in_order(table, rows_as_they_came(table, bodies, now, batch_id))


def rows_as_they_came(table: Table, bodies: Iterable[bytes], now: int, batch_id: int) -> pa.Table:
    """Return the same in the order of the bodies, for columnar kinds."""
    if table is SEGMENT_LOAD:
        rows = _columns_of(bodies, LOAD_SCHEMA)
        rows = rows.append_column("accepted_at", pa.repeat(pa.scalar(now, pa.int64()), len(rows)))
        return _complete_rows(rows, SEGMENT_LOAD, batch_id, "accepted_at")
    if table in (HOLDS, EVENTS):
        return _complete_rows(_columns_of(bodies, COLUMNS[table.name]), table, batch_id, _OWN_TIME[table.name])
    return rare_rows(table, bodies, batch_id)


def _in_order(table: Table, rows: pa.Table) -> pa.Table:
    """Sort rows in the table's order, unless they already are."""
    if table not in (SEGMENT_LOAD, HOLDS, EVENTS):
        return rows
    return rows.sort_by([(name, "ascending") for name in _ORDER[table.name]])


def rare_rows(table: Table, bodies: Iterable[bytes], batch_id: int) -> pa.Table:
    """Return rows that arrived as JSON arrays."""
    rows = [row for body in bodies for row in pydantic_core.from_json(body)]
    if table is DEAD_LETTERS:
        for row in rows:
            row["key"], row["raw"] = _bytes(row["key"]), _bytes(row["raw"])
    rows.sort(key=lambda row: [row.get(name, batch_id) for name in _ORDER[table.name]])
    for row in rows:
        row["batch_id"] = batch_id
        row["day"] = row[_OWN_TIME[table.name]] // _DAY_MS
    columns = {}
    for name, (kind, _) in column_types(table.row).items():
        values = [row.get(name) for row in rows]
        columns[name] = _instants(values) if kind is datetime else _days(values) if kind is date else values
    made = pa.table(columns, schema=arrow_schema(table.row))
    if table is BATCHES:
        made = made.set_column(len(columns) - 1, made.schema.field("checksum"), checksums_of_batches(made))
    return made


def _columns_of(bodies: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(body), schema) for body in bodies], schema)


def _complete_rows(rows: pa.Table, table: Table, batch_id: int, own_time: str) -> pa.Table:
    """Complete columnar rows: add batch and day, convert instants, fill missing columns with null."""
    schema, columns = arrow_schema(table.row), []
    for name, (kind, _) in column_types(table.row).items():
        if name == "batch_id":
            column = pa.repeat(pa.scalar(batch_id, pa.int64()), len(rows))
        elif name == "day":
            column = pc.cast(_from_millis(rows[own_time]), pa.date32())
        elif name not in rows.column_names:
            column = pa.nulls(len(rows), schema.field(name).type)
        else:
            column = _from_millis(rows[name]) if kind is datetime else rows[name]
        columns.append(column)
    return pa.table(columns, schema=schema)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.urlsafe_b64decode(text)


def _instants(values: list[int | None]) -> pa.Array:
    return _from_millis(pa.array(values, pa.int64()))


def _days(values: list[int]) -> pa.Array:
    return pc.cast(pa.array(values, pa.int32()), pa.date32())


def _from_millis(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.cast(pc.cast(values, pa.timestamp("ms", tz="UTC")), pa.timestamp("us", tz="UTC"))
