"""The sink's commits: decisions first, the others side by side, whatever one of them meets; Spark is not needed."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from decisions.topic.layout import SegmentLayout
from lake.files import table_path
from lake.job_lease import JobLease
from lake.lease import LeaseLost
from lake.tables import OpenTable
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.operator.outbox import INLINE_BYTES, OperatorOutbox
from streaming.sink.sink import LakeSink, WrittenBatch
from tests.engine.buckets import Bucket
from tests.engine.records import layout, record, stats, tick
from tests.engine.test_engine import MINUTE, NOW

OUTPUT = pa.schema([("kind", pa.string()), ("body", pa.binary()), ("now", pa.int64())])
TABLES = (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD, BATCHES)


@pytest.fixture(scope="module")
def bodies() -> dict[str, bytes]:
    """What a bucket says in a batch that has rows for every table."""
    bucket, name = Bucket(), "topic://acme/shop/orders"
    garbage = [record("consumer-events", name, value) for value in (b"{", b"\x00\xff")]
    hot = stats({0: 50_000.0, 1: 1.0}, NOW, name)
    decided = bucket.batch(NOW, layout(SegmentLayout.create(2, NOW - MINUTE), topic=name), hot, tick(1), *garbage)
    held = bucket.batch(NOW, tick(2))
    return {**decided.bodies(), HOLDS.name: held.bodies()[HOLDS.name]}


class Frame:
    """The operator's output of a batch, as the sink asks for it."""

    def __init__(self, lake: Path, bodies: dict[str, bytes], inline_bytes: int, number: int) -> None:
        outbox = OperatorOutbox(str(lake), lambda: number, inline_bytes)
        outbox.give(bodies, NOW)
        outbox.close()
        self._rows = [{"kind": kind, "body": body, "now": NOW} for kind, body in outbox.fetch()]
        properties = {"sql.streaming.queryId": "q"}
        self.sparkSession = SimpleNamespace(
            sparkContext=SimpleNamespace(getLocalProperty=properties.get, setJobDescription=lambda _: None)
        )

    def toArrow(self) -> pa.Table:
        return pa.Table.from_pylist(self._rows, OUTPUT)


def numbers(lake: Path) -> dict[str, int]:
    """Rows by table."""
    return {table.name: len(DeltaTable(table_path(lake, table)).to_pyarrow_table()) for table in TABLES}


def nowhere(_topic: str, _at: int) -> None:
    """Takes what is asked of the ticks."""


@pytest.mark.parametrize("inline_bytes", [INLINE_BYTES, 0], ids=["through Spark", "in files"])
def test_tables_committed_once_and_watchers_notified(tmp_path, bodies, inline_bytes):
    """They are notified once the decisions are committed."""
    told: list[WrittenBatch] = []
    sink = LakeSink(str(tmp_path), nowhere, told.append)
    began = time.time_ns() // 1_000_000
    for _ in range(2):
        sink.write(Frame(tmp_path, bodies, inline_bytes, 3), 3)
    sink.write(Frame(tmp_path, {}, inline_bytes, 4), 4)
    assert numbers(tmp_path) == {
        "decisions": 1,
        "holds": 1,
        "events": 2,
        "dead_letters": 2,
        "segment_load": 2,
        "batches": 1,
    }
    first, again = told
    assert began <= first.decided_at <= first.row["committed_at"]
    assert set(first.commit_seconds) == {table.name for table in TABLES}
    assert again.commit_seconds == {}
    assert list(first.columns(DECISIONS, "action")) == [("split",)]
    assert sorted(reason for (reason,) in first.columns(DEAD_LETTERS, "reason")) == ["not-json", "not-json"]
    for table in TABLES[:-1]:
        files = {file.name for file in Path(table_path(tmp_path, table)).glob("day=*/*.parquet")}
        assert len(files) == (1 if inline_bytes else 2), "the second attempt left its own"


def test_row_of_a_batch_names_the_one_before(tmp_path, bodies):
    """Through a batch without output, a repetition and a restart."""
    sink = LakeSink(str(tmp_path), nowhere)
    for number, output in ((3, bodies), (4, {}), (5, bodies), (5, bodies)):
        sink.write(Frame(tmp_path, output, INLINE_BYTES, number), number)
    for number in (5, 6):
        LakeSink(str(tmp_path), nowhere).write(Frame(tmp_path, bodies, INLINE_BYTES, number), number)
    rows = DeltaTable(table_path(tmp_path, BATCHES)).to_pyarrow_table().sort_by("batch_id")
    assert list(zip(rows["batch_id"].to_pylist(), rows["previous"].to_pylist(), strict=True)) == [
        (3, None),
        (5, 3),
        (6, 5),
    ]


@pytest.mark.parametrize("broken", [HOLDS, EVENTS, SEGMENT_LOAD], ids=lambda table: table.name)
def test_failed_commit_completed_by_repetition(tmp_path, bodies, broken):
    sink = LakeSink(str(tmp_path), nowhere)
    sink.write(Frame(tmp_path, {}, 0, 2), 2)
    folder = Path(table_path(tmp_path, broken))
    (folder / "_delta_log").rename(tmp_path / "away")
    with pytest.raises((DeltaError, OSError)):
        sink.write(Frame(tmp_path, bodies, 0, 3), 3)
    shutil.rmtree(folder / "_delta_log", ignore_errors=True)
    (tmp_path / "away").rename(folder / "_delta_log")
    written = numbers(tmp_path)
    assert [name for name, number in written.items() if not number] == [broken.name, "batches"]
    LakeSink(str(tmp_path), nowhere).write(Frame(tmp_path, bodies, 0, 3), 3)
    whole = numbers(tmp_path)
    assert all(whole.values())
    assert {**whole, broken.name: 0, "batches": 0} == written


def test_lost_lease_reported_before_other_errors(tmp_path, bodies):
    sink = LakeSink(str(tmp_path), nowhere)
    tables = {table.name: OpenTable(DeltaTable(table_path(tmp_path, table))) for table in TABLES}
    mine, other = JobLease(tables[EVENTS.name], 1, 30.0), JobLease(tables[EVENTS.name], 2, 30.0)
    sink.hold(mine)
    sink.write(Frame(tmp_path, {}, 0, 2), 2)
    other.shut_out_others({SEGMENT_LOAD.name: tables[SEGMENT_LOAD.name]})
    Path(table_path(tmp_path, HOLDS), "_delta_log").rename(tmp_path / "away")
    with pytest.raises(LeaseLost, match="another job has taken over this lake"):
        sink.write(Frame(tmp_path, bodies, 0, 3), 3)
    (tmp_path / "away").rename(Path(table_path(tmp_path, HOLDS), "_delta_log"))
    assert numbers(tmp_path)["segment_load"] == numbers(tmp_path)["batches"] == 0


def test_overtaken_job_told_and_writes_nothing(tmp_path, bodies):
    """Another job takes over while Spark works."""
    sink = LakeSink(str(tmp_path), nowhere)
    tables = {table.name: OpenTable(DeltaTable(table_path(tmp_path, table))) for table in TABLES}
    sink.hold(JobLease(tables[EVENTS.name], 1, 30.0))

    class Overtaken(Frame):
        def toArrow(self) -> pa.Table:
            wait(sink._looks.values())
            JobLease(tables[EVENTS.name], 2, 30.0).shut_out_others(tables)
            return super().toArrow()

    with pytest.raises(LeaseLost, match="another job has taken over this lake"):
        sink.write(Overtaken(tmp_path, bodies, 0, 3), 3)
    assert not any(numbers(tmp_path).values())
