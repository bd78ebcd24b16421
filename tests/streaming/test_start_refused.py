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
def test_a_lake_of_a_newer_release_is_refused_before_spark_starts(tmp_path):
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


def test_a_lake_with_rows_and_no_checkpoint_is_refused_with_the_three_ways_on():
    with pytest.raises(CheckpointUnfit) as caught:
        check_place("/c", None, "/lake", None)
    for way in ("bring it back", "`anabranch state rebuild`", "`anabranch stream --new-checkpoint`"):
        assert way in str(caught.value)


@pytest.mark.parametrize("written", [None, 0, 4, 5])
def test_a_checkpoint_is_gone_on_from_when_the_lake_is_not_ahead_of_it(written):
    check_place("/c", Place("q", 5), "/lake", written)


def test_an_old_copy_of_a_checkpoint_is_refused_its_batches_would_be_taken_for_replays():
    with pytest.raises(CheckpointUnfit, match="it has come to batch 5, and the lake /lake holds its batch 6"):
        check_place("/c", Place("q", 5), "/lake", 6)


def test_the_newest_batch_of_a_query_is_that_of_any_table_and_of_no_other_query(tmp_path):
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


def test_a_rebuilt_checkpoint_that_was_copied_without_its_state_is_refused():
    rebuilt = Place(rebuilt_generation("q", 0), -1)
    with pytest.raises(
        CheckpointUnfit, match=r"was made by `anabranch state rebuild`.* Copy the checkpoint as a whole"
    ):
        check_place("/c", rebuilt, "/lake", None)
    check_place("/c", rebuilt, "/lake", None, has_first_start=True)
    check_place("/c", Place(rebuilt.query, 3, 3), "/lake", 3)


@pytest.mark.spark
def test_the_place_of_a_checkpoint_is_its_identity_and_its_newest_batch(spark, tmp_path):
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
