"""The operator's output as Arrow tables of exactly the tables' schemas.

Stage: in the sink. Instants come as milliseconds and become microsecond timestamps; `batch_id` and `day` are added
here. Rows are put in an order that does not depend on how Spark laid them out.
"""

from __future__ import annotations

from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core

from schemas.arrow import arrow_schema, column_types
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD, Table

DAY_MS = 86_400_000

_OWN_TIME = {
    DECISIONS.name: "decided_at",
    HOLDS.name: "since",
    EVENTS.name: "accepted_at",
    DEAD_LETTERS.name: "rejected_at",
    BATCHES.name: "batch_at",
}
"""The instant of a row that its `day` is taken from."""

_ORDER = {
    DECISIONS.name: ("subject", "seq"),
    HOLDS.name: ("subject", "seq"),
    EVENTS.name: ("kafka_topic", "kafka_partition", "kafka_offset"),
    DEAD_LETTERS.name: ("kafka_topic", "kafka_partition", "kafka_offset"),
    BATCHES.name: ("batch_id",),
}


def rare_rows(table: Table, output: pa.Table, batch_id: int) -> pa.Table:
    """Rows that came as JSON bodies (with `key` and `raw` beside them for dead letters)."""
    rows = [pydantic_core.from_json(body) for body in output["body"].to_pylist()]
    if table is DEAD_LETTERS:
        for row, key, raw in zip(rows, output["key"].to_pylist(), output["raw"].to_pylist(), strict=True):
            row["key"], row["raw"] = key, raw
    rows.sort(key=lambda row: [row.get(name, batch_id) for name in _ORDER[table.name]])
    for row in rows:
        row["batch_id"] = batch_id
        row["day"] = row[_OWN_TIME[table.name]] // DAY_MS
    columns = {}
    for name, (kind, _) in column_types(table.row).items():
        values = [row.get(name) for row in rows]
        columns[name] = _instants(values) if kind is datetime else _days(values) if kind is date else values
    return pa.table(columns, schema=arrow_schema(table.row))


def bulk_rows(output: pa.Table, batch_id: int) -> pa.Table:
    """Accepted load records: columns as they are."""
    accepted_at = output["now"]
    columns = {
        **{name: output[name] for name in output.column_names},
        "sampled_at": _from_millis(output["sampled_at"]),
        "accepted_at": _from_millis(accepted_at),
        "batch_id": pa.repeat(pa.scalar(batch_id, pa.int64()), output.num_rows),
        "day": pc.cast(pc.cast(pc.divide(accepted_at, DAY_MS), pa.int32()), pa.date32()),
    }
    schema = arrow_schema(SEGMENT_LOAD.row)
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    return table.sort_by([("kafka_partition", "ascending"), ("kafka_offset", "ascending"), ("segment_id", "ascending")])


def _instants(values: list[int | None]) -> pa.Array:
    return _from_millis(pa.array(values, pa.int64()))


def _days(values: list[int]) -> pa.Array:
    return pc.cast(pa.array(values, pa.int32()), pa.date32())


def _from_millis(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.cast(pc.cast(values, pa.timestamp("ms", tz="UTC")), pa.timestamp("us", tz="UTC"))
