"""Output that is too much for the driver at once waits in files, and becomes the same rows."""

from __future__ import annotations

import pyarrow as pa
import pydantic_core
import pytest

from schemas.tables import DEAD_LETTERS
from streaming import output as output_module
from streaming import spool
from streaming.output import BatchOutput
from streaming.spool import SPOOLED, Outbox, empty_spool, read_chunk, remove_chunk, spool_folder

NOW = 1_763_660_000_000
SCHEMA = pa.schema([("kind", pa.string()), ("body", pa.binary()), ("now", pa.int64())])


def letters(*offsets: int) -> bytes:
    return pydantic_core.to_json([
        {"reason": "not-json", "detail": "", "key": None, "raw": "AA==", "raw_size": 1, "raw_sha256": "ab",
         "kafka_topic": "segment-stats", "kafka_partition": 0, "kafka_offset": offset, "kafka_timestamp": NOW,
         "rejected_at": NOW}
        for offset in offsets
    ])  # fmt: skip


def offsets_of(rows: list[tuple[str, bytes]]) -> list[list[int]]:
    table = pa.Table.from_pylist([{"kind": kind, "body": body, "now": NOW} for kind, body in rows], SCHEMA)
    chunks = BatchOutput(table, 7).chunks(DEAD_LETTERS)
    found = [chunk["kafka_offset"].to_pylist() for chunk in chunks]
    assert found == [chunk["kafka_offset"].to_pylist() for chunk in chunks]
    return found


@pytest.fixture(params=["a folder", "a storage of delta-rs"])
def folder(request, tmp_path, monkeypatch) -> str:
    """A spool in a local folder; or in the same through delta-rs, as at a URL."""
    if request.param == "a folder":
        return spool_folder(str(tmp_path), "checkpoint")
    (tmp_path / "spool").mkdir()
    monkeypatch.setattr(spool, "_local", lambda path: None)
    return f"file://{tmp_path}/spool"


def test_what_a_task_says_beyond_the_bound_waits_in_files_until_it_is_removed(folder, monkeypatch):
    monkeypatch.setattr(spool, "MAX_INLINE_BYTES", len(letters(1, 2)))
    monkeypatch.setattr(output_module, "MAX_CHUNK_BYTES", len(letters(1, 2)) + 1)
    outbox = Outbox(folder)
    outbox.give({DEAD_LETTERS.name: letters(2, 1)})
    first = outbox.fetch()
    outbox.give({DEAD_LETTERS.name: letters(3)})
    outbox.give({DEAD_LETTERS.name: letters(4)})
    rows = [*first, *outbox.fetch()]
    assert [kind for kind, _ in rows] == ["dead_letters", SPOOLED + "dead_letters", SPOOLED + "dead_letters"]
    assert offsets_of(rows) == [[1, 2], [3, 4]]
    for kind, body in rows:
        remove_chunk(kind, body)
    with pytest.raises(OSError):
        read_chunk(*rows[-1])


def test_what_a_killed_job_left_is_removed_at_the_next_start(folder, monkeypatch):
    monkeypatch.setattr(spool, "MAX_INLINE_BYTES", 0)
    empty_spool(folder)
    outbox = Outbox(folder)
    outbox.give({DEAD_LETTERS.name: letters(1)})
    (row,) = outbox.fetch()
    empty_spool(folder)
    with pytest.raises(OSError):
        read_chunk(*row)
