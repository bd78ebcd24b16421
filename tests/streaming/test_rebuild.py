"""The folder that a rebuild makes, and when it refuses to; no JVM."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from anabranch.history.rebuild import rebuild_checkpoint, start_offsets
from anabranch.history.recorded import RecordedHistory
from engine.families import PARTS, bucket_engine
from engine.history import rebuilt_generation
from engine.kernel.packed import Packed, StoredPart
from engine.replay import RebuildError
from lake.tables import create_lake
from streaming.checkpoint.first_start import first_start
from streaming.checkpoint.stateview import topic_view
from streaming.checkpoint.storage import LocalFiles
from streaming.sink.sink import APP
from tests.engine.buckets import CONFIGURED, SETTINGS
from tests.engine.records import policy, tick
from tests.engine.test_engine import NOW, SECOND
from tests.engine.test_replay import NAMES, hot

BOUNDS = {topic: {0: (0, 10**9)} for topic in ("segment-stats", "consumer-events", "control-events")}


@pytest.fixture
def lake(tmp_path):
    """The rows of `hot`, and a policy, in a lake."""
    bucket = hot()
    bucket.batch(NOW + 3 * SECOND, policy({"maxSegments": 7}, "acme/shop"))
    for name, table in create_lake(tmp_path / "lake").items():
        for number, rows in enumerate(bucket.tables.get(name, [])):
            done = CommitProperties(app_transactions=[Transaction(f"{APP}:first", number)])
            write_deltalake(table, rows, mode="append", commit_properties=done)
    return str(tmp_path / "lake")


def rebuilt(lake, checkpoint, buckets=2):
    return rebuild_checkpoint(
        lake, LocalFiles(str(checkpoint)), SETTINGS, CONFIGURED, buckets, lambda names: dict.fromkeys(names, 1), BOUNDS
    )


def test_rebuilt_checkpoint_has_buckets_and_generation(lake, tmp_path):
    done = rebuilt(lake, tmp_path / "checkpoint")
    assert (done.topics, done.open_decisions, done.until, done.gone) == (1, 1, NOW + 3 * SECOND, [])
    identity = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    assert identity == done.generation == rebuilt_generation("first", 0)
    start = first_start(LocalFiles(str(tmp_path / "checkpoint")))
    assert start.buckets == 2
    assert json.loads(start.offsets_json("segment-stats"))["segment-stats"]["0"] > 0
    assert json.loads(start.offsets_json("consumer-events")) == {"consumer-events": {"0": -2}}
    for row in pq.read_table(start.state.removeprefix("file://")).to_pylist():
        packed = Packed(row["fence"], {name: StoredPart(row[name]) for name in PARTS})
        _, output = bucket_engine(SETTINGS).run(row["bucket"], packed, [tick(9)], NOW + 4 * SECOND)
        assert output.counts.evaluations == row["bucket"]


def test_started_checkpoint_not_rebuilt(lake, tmp_path):
    rebuilt(lake, tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "commits").mkdir()
    assert first_start(LocalFiles(str(tmp_path / "checkpoint"))) is not None
    (tmp_path / "checkpoint" / "commits" / "0").write_text("v1\n{}")
    assert first_start(LocalFiles(str(tmp_path / "checkpoint"))) is None


def test_a_checkpoint_that_is_there_is_left_alone(lake, tmp_path):
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(RebuildError, match="move it away first"):
        rebuilt(lake, tmp_path / "checkpoint")
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["offsets"]


def test_refused_rebuild_leaves_no_checkpoint(lake, tmp_path):
    with pytest.raises(KeyError):
        rebuild_checkpoint(
            lake, LocalFiles(str(tmp_path / "c")), SETTINGS, CONFIGURED, 2, lambda _: {NAMES[0]: 5}, BOUNDS
        )
    assert first_start(LocalFiles(str(tmp_path / "c"))) is None
    assert not (tmp_path / "c").exists()


def test_a_lake_without_batches_is_refused(tmp_path):
    with pytest.raises(RebuildError, match="no batch is on record"):
        rebuilt(str(tmp_path / "empty"), tmp_path / "checkpoint")


def test_rebuild_reports_lost_kafka_and_goes_on():
    offsets, gone = start_offsets({"events": {0: 5, 1: 9}}, {"events": {0: (8, 20), 1: (0, 9), 2: (3, 4)}})
    assert offsets == {"events": {0: 8, 1: 9, 2: -2}}
    assert gone == ["events-0: 3 records from offset 5"]


@pytest.mark.parametrize(
    ("bounds", "said"), [({0: (0, 4)}, "not the Kafka that the lake was filled from"), ({}, "does not have")]
)
def test_foreign_kafka_refused(bounds, said):
    with pytest.raises(RebuildError, match=said):
        start_offsets({"events": {0: 5}}, {"events": bounds})


def test_topic_shown_as_in_bucket_or_unknown(lake, tmp_path):
    rebuilt(lake, tmp_path / "checkpoint")
    row = pq.read_table(
        first_start(LocalFiles(str(tmp_path / "checkpoint"))).state.removeprefix("file://")
    ).to_pylist()[1]
    packed = Packed(row["fence"], {name: StoredPart(row[name]) for name in PARTS})
    view = topic_view(packed, NAMES[0])
    assert (view["hold"], view["decisions"], view["policy"]["maxSegments"]) == ("in-flight", 1, 7)
    assert view["loads"]["0"]["msg_rate_in"] == 50_000.0
    assert topic_view(packed, NAMES[1]) is None


def test_chunked_history_equals_whole(lake, tmp_path, monkeypatch):
    DeltaTable(f"{lake}/events").optimize.compact()
    whole = rebuilt(lake, tmp_path / "whole")
    chunks = list(RecordedHistory(lake, tmp_path / "files", chunk_bytes=1).chunks())
    assert len(chunks) == 4
    monkeypatch.setattr(RecordedHistory.__init__, "__defaults__", (1,))
    assert rebuilt(lake, tmp_path / "chunked") == whole
    states = [pq.read_table(tmp_path / name / "rebuilt" / "state.parquet") for name in ("whole", "chunked")]
    assert states[0].equals(states[1])
    assert not any((tmp_path / "files").glob("*"))
