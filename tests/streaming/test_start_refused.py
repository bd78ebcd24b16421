"""What the job refuses to start on: nothing is written, and one line says what is wrong, where, and what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from engine.history import rebuilt_generation
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DECISIONS, HOLDS
from streaming.checkpoint.claim import CheckpointUnfit, Place, check_place, read_place
from streaming.checkpoint.storage import files_of
from streaming.sink.sink import APP, LakeSink
from tests.streaming.jobs import HOME


@pytest.mark.process
def test_newer_lake_refused_before_spark(tmp_path):
    newer = arrow_schema(DECISIONS.row).append(pa.field("confidence", pa.float64()))
    (tmp_path / "lake" / "decisions").mkdir(parents=True)
    DeltaTable.create(str(tmp_path / "lake" / "decisions"), schema=newer, partition_by=["day"])
    file = tmp_path / "job.toml"
    file.write_text(f'[lake]\npath = "{tmp_path}/lake"\n[stream]\ncheckpoint = "{tmp_path}/checkpoint"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "anabranch", "--config", str(file), "stream"],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "columns that this release does not know: confidence" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "checkpoint").exists()


def test_lake_without_checkpoint_refused_with_ways_on():
    with pytest.raises(CheckpointUnfit) as caught:
        check_place("/c", None, "/lake", None)
    for way in ("bring it back", "`anabranch lake state rebuild`", "`anabranch serve stream --new-checkpoint`"):
        assert way in str(caught.value)


@pytest.mark.parametrize("written", [None, 0, 4, 5])
def test_checkpoint_continued_if_lake_not_ahead(written):
    check_place("/c", Place("q", 5), "/lake", written)


def test_old_checkpoint_copy_refused():
    """Its batches would be taken for replays."""
    with pytest.raises(CheckpointUnfit, match="it has come to batch 5, and the lake /lake holds its batch 6"):
        check_place("/c", Place("q", 5), "/lake", 6)


def test_newest_batch_read_per_query(tmp_path):
    sink = LakeSink(str(tmp_path), lambda *_: None)
    assert (sink.has_batches(), sink.newest_batch("mine")) == (False, None)
    for table, query, batch in ((BATCHES, "mine", 6), (HOLDS, "mine", 7), (BATCHES, "other", 9)):
        write_deltalake(
            str(tmp_path / table.name),
            arrow_schema(table.row).empty_table(),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(f"{APP}:{query}", batch)]),
        )
    again = LakeSink(str(tmp_path), lambda *_: None)
    assert (again.newest_batch("mine"), again.newest_batch("other"), again.newest_batch("none")) == (7, 9, None)


def test_rebuilt_checkpoint_without_state_refused():
    rebuilt = Place(rebuilt_generation("q", 0), -1)
    with pytest.raises(
        CheckpointUnfit, match=r"was made by `anabranch lake state rebuild`.* Copy the checkpoint as a whole"
    ):
        check_place("/c", rebuilt, "/lake", None)
    check_place("/c", rebuilt, "/lake", None, has_first_start=True)
    check_place("/c", Place(rebuilt.query, 3, 3), "/lake", 3)


@pytest.mark.spark
def test_checkpoint_position_is_identity_and_batch(spark, tmp_path):
    checkpoint = tmp_path / "stream"
    for name in (str(checkpoint), checkpoint.as_uri()):
        assert read_place(files_of(spark, name)) is None
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "a-b-c"}))
    assert read_place(files_of(spark, str(checkpoint))) == Place("a-b-c", -1)
    for name in ("8", "9", "10", ".11.tmp"):
        (checkpoint / "offsets" / name).touch()
    for name in (str(checkpoint), checkpoint.as_uri()):
        assert read_place(files_of(spark, name)) == Place("a-b-c", 10)
    (checkpoint / "metadata").unlink()
    assert read_place(files_of(spark, str(checkpoint))) == Place("", 10)
