"""The adapter of the operator: its state variables are the families' parts; no JVM."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from engine import families
from engine.kernel.bucket import BucketEngine
from engine.kernel.packing import BucketPacker, unpack_bucket
from streaming import processor
from tests.engine.buckets import SETTINGS
from tests.engine.bundles import BUNDLES, PART
from tests.engine.records import configured, tick
from tests.engine.test_families import HOT, report, topic_and_bundles
from tests.engine.test_packing import INPUT, NOW


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


class Handle:
    """The state store of one key."""

    def __init__(self):
        self.variables = {}

    def getValueState(self, name, schema):
        return self.variables.setdefault(name, Value())

    def getListState(self, name, schema):
        return self.variables.setdefault(name, Log())


def test_the_state_variables_are_those_of_the_first_release():
    handle = Handle()
    processor.BucketProcessor(SETTINGS, "spool").init(handle)
    assert sorted(handle.variables) == ["fence", "loads", "loads_log", "topics", "topics_log"]


@pytest.fixture
def both(monkeypatch):
    """A second family, as if it ran in the product."""
    running = (*families.FAMILIES, BUNDLES)
    monkeypatch.setattr(processor, "PARTS", families.part_names(running))
    monkeypatch.setattr(processor, "bucket_engine", lambda settings: BucketEngine(settings, running))
    monkeypatch.setattr(processor, "unpack_rows", lambda kinds, bodies: unpack_bucket(kinds, bodies, running))
    monkeypatch.setattr(processor, "_ENGINES", {})
    return running


def packed_rows(running, records, now):
    """The records as the shuffle brings them to the operator."""
    rows = [dict(zip(INPUT.names, (*one[:7], now, 0), strict=True)) for one in records]
    batch = pa.RecordBatch.from_pylist(rows, schema=INPUT)
    return [SimpleNamespace(**row) for part in BucketPacker(1, running)(iter([batch])) for row in part.to_pylist()]


def test_a_second_family_has_state_variables_of_its_own_and_outlives_its_worker(both, monkeypatch):
    handle = Handle()

    def batch(now, *records):
        operator = processor.BucketProcessor(SETTINGS, "spool")
        operator.init(handle)
        return {
            row.kind: row.body for row in operator.handleInputRows((0,), iter(packed_rows(both, records, now)), None)
        }

    assert b'"family":"bundles"' in batch(NOW, configured(), *topic_and_bundles())["decisions"]
    assert handle.variables[f"{PART}_log"].rows
    monkeypatch.setattr(processor, "_ENGINES", {})
    said = batch(NOW + 1, report(HOT, 600.0), tick(2))
    assert "decisions" not in said
    assert said["holds"].count(b'"gate":"in-flight"') == 2
