"""The adapter of the operator: its state variables are the families' parts; no JVM."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState

from engine import families
from engine.kernel import records
from engine.kernel.bucket import BucketEngine
from engine.kernel.packing import BucketPacker, unpack_bucket
from schemas.tables.rows import DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.operator import arrivals, bucket_task, processor
from streaming.sink.output import BatchOutput
from tests.engine.buckets import RAW, SETTINGS
from tests.engine.bundles import BUNDLES, PART
from tests.engine.records import configured, tick
from tests.engine.streams import Batch, recorded
from tests.engine.test_families import HOT, report, topic_and_bundles
from tests.engine.test_packing import NOW
from tests.examples import only_first

OUTPUT = pa.schema([("kind", pa.string()), ("body", pa.binary()), ("now", pa.int64())])


class Value:
    """A value of the state store."""

    def __init__(self):
        self.row = None

    def get(self):
        return self.row

    def update(self, row):
        self.row = row


class Log:
    """A list of the state store."""

    def __init__(self):
        self.rows = []

    def get(self):
        return iter(self.rows)

    def appendValue(self, row):
        self.rows.append(row)

    def clear(self):
        self.rows = []


class Client:
    """What Spark's own processors ask for their state by."""

    def __init__(self):
        self.told, self._client_socket, self.sockfile = [], io.BytesIO(), io.BytesIO()
        self.handle_state = StatefulProcessorHandleState.CREATED

    def set_handle_state(self, state):
        self.told.append(state)


class Handle:
    """The state store of one key."""

    def __init__(self):
        self.variables = {}
        self._statefulProcessorApiClient = Client()

    def getValueState(self, name, schema):
        return self.variables.setdefault(name, Value())

    def getListState(self, name, schema):
        return self.variables.setdefault(name, Log())


ALL = ["fence", "loads", "loads_log", "topics", "topics_log"]


def test_state_variables_of_first_release_stay():
    handle = Handle()
    processor.BucketProcessor(families.PARTS, SETTINGS, "lake").init(handle)
    assert sorted(handle.variables) == ALL


def test_task_declares_variables_once(monkeypatch):
    def declared(query, partition, batch):
        said = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        context = SimpleNamespace(getLocalProperty=said.get, partitionId=lambda: partition)
        monkeypatch.setattr(processor, "TaskContext", SimpleNamespace(get=lambda: context))
        handle, operator = Handle(), processor.BucketProcessor(families.PARTS, SETTINGS, "lake")
        operator.init(handle)
        client = handle._statefulProcessorApiClient
        client.set_handle_state(StatefulProcessorHandleState.INITIALIZED)
        # Once Spark hears that, it lets no more be declared.
        assert (client.told, client.handle_state) == ([], StatefulProcessorHandleState.INITIALIZED)
        before = sorted(handle.variables)
        assert operator._logs["loads"] is operator._logs["loads"]
        assert sorted(handle.variables) == sorted({*before, "loads_log"})
        return before

    monkeypatch.setattr(processor, "_FIRST_BATCHES", {})
    assert declared("a", 0, 7) == ALL
    assert declared("a", 0, 7) == ALL  # The batch again: the first attempt may not have been committed.
    assert declared("a", 0, 8) == ["fence"]
    assert declared("a", 1, 8) == ALL
    assert declared("b", 0, 9) == ALL


def test_task_end_closed_by_the_next_task():
    """Spark is not told that a task is over."""
    handles = [Handle(), Handle()]
    for handle in handles:
        processor.BucketProcessor(families.PARTS, SETTINGS, "lake").init(handle)
    first, second = (handle.__dict__.pop("_statefulProcessorApiClient") for handle in handles)
    first.set_handle_state(StatefulProcessorHandleState.TIMER_PROCESSED)
    first.set_handle_state(StatefulProcessorHandleState.CLOSED)
    assert first.told == [StatefulProcessorHandleState.TIMER_PROCESSED]
    assert (first._client_socket.closed, first.sockfile.closed) == (False, False)
    second.set_handle_state(StatefulProcessorHandleState.CLOSED)
    assert (first._client_socket.closed, first.sockfile.closed) == (True, True)
    assert (second.told, second._client_socket.closed, second.sockfile.closed) == ([], False, False)
    gone = weakref.ref(first)
    gc.disable()
    try:
        del first
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.process
def test_variables_listed_without_engine():
    """Spark asks a Python of its own, before the first batch of a query."""
    ask = "import sys, streaming.operator.processor, engine.kernel.settings; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    assert {"pandas", "pyarrow", "numpy", "engine.families"}.isdisjoint(loaded)


@pytest.fixture
def both(monkeypatch):
    """A second family, as if it ran in the product."""
    running = (*families.FAMILIES, BUNDLES)
    monkeypatch.setattr(bucket_task, "bucket_engine", lambda settings: BucketEngine(settings, running))
    monkeypatch.setattr(bucket_task, "unpack_rows", lambda kinds, bodies: unpack_bucket(kinds, bodies, running))
    monkeypatch.setattr(bucket_task, "_ENGINES", {})
    return running


def packed_rows(running, records, now):
    """The records as the shuffle brings them to the operator."""
    rows = [dict(zip(RAW.names, (*one[:7], now, 0), strict=True)) for one in records]
    batch = pa.RecordBatch.from_pylist(rows, schema=RAW)
    return [SimpleNamespace(**row) for part in BucketPacker(1, running)(iter([batch])) for row in part.to_pylist()]


def test_second_family_state_outlives_worker(both, monkeypatch):
    """It has state variables of its own."""
    handle = Handle()

    def batch(now, *records):
        operator = processor.BucketProcessor(families.part_names(both), SETTINGS, "lake")
        operator.init(handle)
        return {
            row.kind: row.body for row in operator.handleInputRows((0,), iter(packed_rows(both, records, now)), None)
        }

    assert b'"family":"bundles"' in batch(NOW, configured(), *topic_and_bundles())["decisions"]
    assert handle.variables[f"{PART}_log"].rows
    monkeypatch.setattr(bucket_task, "_ENGINES", {})
    said = batch(NOW + 1, report(HOT, 600.0), tick(2))
    assert "decisions" not in said
    holds = pa.ipc.read_record_batch(pa.py_buffer(said["holds"]), records.HOLD_SCHEMA)
    assert holds["gate"].to_pylist() == ["in-flight"] * 2


def rows_of(said, lake):
    """The rows of the tables that a task's output becomes, and its counts."""
    rows = pa.Table.from_pylist(said, OUTPUT)
    batch = BatchOutput(rows, 1, str(lake))
    counts = {name: value for name, value in batch.counts.items() if name != "operator_ms"}
    tables = {
        table.name: sorted((row for chunk in batch.rows(table) for row in chunk.to_pylist()), key=repr)
        for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD)
    }
    return tables, counts


@pytest.mark.parametrize("seed", only_first(1, range(2)))
def test_oversized_batch_gives_equal_rows_and_state(seed, tmp_path, monkeypatch):
    """It fits nowhere at once."""
    batches = recorded(seed).batches
    found = []
    for is_tight in (False, True):
        if is_tight:
            monkeypatch.setattr(arrivals.in_parts, "__defaults__", (1, 1))
            monkeypatch.setattr(records, "MAX_CHUNK_BYTES", 2_000)
            monkeypatch.setattr(bucket_task, "batch_of_task", lambda: 1)
        monkeypatch.setattr(bucket_task, "_ENGINES", {})
        handle, said, packer = Handle(), [], families.bucket_packer(1)
        for batch in [Batch(NOW, [("control-events", b"*", configured().value, 0, 0)], False), *batches[:25]]:
            rows = [
                dict(
                    zip(
                        RAW.names,
                        (source, key, value, len(value or b"\0"), partition, offset, 0, batch.now, 0),
                        strict=True,
                    )
                )
                for source, key, value, partition, offset in batch.records
            ]
            inline_bytes = 1_000 if is_tight else 1 << 30
            operator = processor.BucketProcessor(families.PARTS, SETTINGS, str(tmp_path), inline_bytes=inline_bytes)
            operator.init(handle)
            raw = (
                [pa.RecordBatch.from_pylist([row], RAW) for row in rows]
                if is_tight
                else [pa.RecordBatch.from_pylist(rows, RAW)]
            )
            packed = [SimpleNamespace(**row) for part in packer(iter(raw)) for row in part.to_pylist()]
            given = [row.asDict() for row in operator.handleInputRows((0,), reversed(packed), None)]
            operator.close()
            said.append(rows_of(given, tmp_path))
        found.append((said, handle.variables["fence"].row))
        assert any(tables["decisions"] for tables, _ in said)
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]
    assert list(tmp_path.iterdir())
