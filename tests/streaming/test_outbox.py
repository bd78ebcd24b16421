"""What a task says: little of it through Spark, the rest in files of the tables; the sink finds the same rows."""

from __future__ import annotations

import pyarrow as pa
import pydantic_core
import pytest

from engine.kernel.records import COUNTS
from lake.files import FileUnfit
from lake.tables import OpenTable, create_table
from schemas.tables.rows import DEAD_LETTERS, EVENTS
from streaming.operator.outbox import FILE, OperatorOutbox
from streaming.sink.output import BatchOutput

NOW = 1_763_660_000_000
SCHEMA = pa.schema([("kind", pa.string()), ("body", pa.binary()), ("now", pa.int64())])


def letters(*offsets: int) -> bytes:
    return pydantic_core.to_json(
        [
            {
                "reason": "not-json",
                "detail": "",
                "key": None,
                "raw": "AA==",
                "raw_size": 1,
                "raw_sha256": "ab",
                "kafka_topic": "segment-stats",
                "kafka_partition": 0,
                "kafka_offset": offset,
                "kafka_timestamp": NOW,
                "rejected_at": NOW,
            }
            for offset in offsets
        ]
    )


def output_of(rows: list[tuple[str, bytes]], lake, batch_id: int = 7) -> BatchOutput:
    table = pa.Table.from_pylist([{"kind": kind, "body": body, "now": NOW} for kind, body in rows], SCHEMA)
    return BatchOutput(table, batch_id, str(lake))


def offsets_of(rows: pa.Table) -> list[int]:
    return sorted(rows["kafka_offset"].to_pylist())


def test_surplus_announcements_go_into_one_file(tmp_path):
    """It is committed with the rest."""
    outbox = OperatorOutbox(str(tmp_path), lambda: 7, inline_bytes=8 * len(letters(1)))
    outbox.give({DEAD_LETTERS.name: letters(1), COUNTS: b'[{"samples_accepted": 2}]'}, NOW)
    first = outbox.fetch()
    outbox.give({DEAD_LETTERS.name: letters(3, 2)}, NOW)
    outbox.give({DEAD_LETTERS.name: letters(4), COUNTS: b'[{"samples_accepted": 3}]'}, NOW)
    rows = [*first, *outbox.fetch()]
    outbox.close()
    assert [kind for kind, _ in rows] == [DEAD_LETTERS.name, COUNTS, FILE + DEAD_LETTERS.name, COUNTS]
    output = output_of(rows, tmp_path)
    said = output.rows(DEAD_LETTERS)
    assert (len(said), len(said.inline), [file.number for file in said.files]) == (4, 1, [3])
    assert offsets_of(pa.concat_tables(said)) == [1, 2, 3, 4]
    assert len(output.rows(EVENTS)) == 0
    assert output.counts["samples_accepted"] == 5
    table = OpenTable(create_table(tmp_path, DEAD_LETTERS))
    table.add(said.files, "app", 7)
    assert offsets_of(table.newest().to_pyarrow_table()) == [2, 3, 4]


def test_many_small_bodies_share_a_file(tmp_path):
    outbox = OperatorOutbox(str(tmp_path), lambda: 7, inline_bytes=8 * len(letters(10)))
    for offset in range(10, 22):
        outbox.give({DEAD_LETTERS.name: letters(offset)}, NOW)
    rows = outbox.fetch()
    outbox.close()
    said = output_of(rows, tmp_path).rows(DEAD_LETTERS)
    assert (len(said.inline), [file.number for file in said.files]) == (8, [4])


def test_foreign_or_unfinished_file_refused(tmp_path):
    outbox = OperatorOutbox(str(tmp_path), lambda: 6, inline_bytes=0)
    outbox.give({DEAD_LETTERS.name: letters(1)}, NOW)
    output = output_of(outbox.fetch(), tmp_path)
    with pytest.raises(pa.ArrowInvalid):
        output.rows(DEAD_LETTERS)
    outbox.close()
    with pytest.raises(FileUnfit, match="rows of another batch than 7"):
        output.rows(DEAD_LETTERS)
    assert not create_table(tmp_path, DEAD_LETTERS).to_pyarrow_table().num_rows
