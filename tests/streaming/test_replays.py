"""What the lake holds of a batch is held against what its repetition says, before anything is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lake.tables import OpenTable, create_lake
from schemas.tables import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.replays import FirstAttempt, ReplayDiffers
from tests.engine.records import consumers, record, stats
from tests.engine.test_engine import NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket, hot

WRITTEN = (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD)
APP = "anabranch-stream:q"


@pytest.fixture
def tables(tmp_path):
    return {name: OpenTable(table) for name, table in create_lake(tmp_path).items()}


def with_column(rows, name, value):
    """The rows with one value in all of a column."""
    place = rows.schema.get_field_index(name)
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array([value] * rows.num_rows, field.type))


@pytest.fixture(scope="module")
def said():
    """The rows of batch 7 with a decision, events and loads, with a hold instead, and with dead letters."""
    bucket: RecordedBucket = hot()
    garbage = [record("consumer-events", NAMES[0], value) for value in (b"{", b"\x00\xff")]
    bucket.batch(NOW + 3 * SECOND, *garbage, consumers(3, topic=NAMES[0]), stats({1: 7.5}, NOW + SECOND, NAMES[0]))
    return [
        {table.name: with_column(bucket.tables[table.name][batch], "batch_id", 7) for table in (*WRITTEN, BATCHES)}
        for batch in (1, 2, 3)
    ]


def write(tables, rows, *names):
    for table in names:
        if rows[table.name].num_rows:
            tables[table.name].append(rows[table.name], APP, 7)


def check(tables, rows):
    attempt = FirstAttempt(tables, APP, 7)
    for table in WRITTEN:
        chunks = [rows[table.name].slice(place, 1) for place in range(rows[table.name].num_rows)]
        attempt.check(table, reversed(chunks))


@pytest.mark.parametrize("written", range(len(WRITTEN) + 1))
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_repetition_that_says_the_same_goes_on_wherever_the_first_attempt_had_come_to(tables, said, which, written):
    write(tables, said[which], *WRITTEN[:written])
    check(tables, said[which])


def test_a_decision_that_was_written_and_is_not_taken_again_is_refused(tables, said):
    decided, held, _ = said
    write(tables, decided, DECISIONS)
    with pytest.raises(
        ReplayDiffers, match=r"batch 7 .* its first attempt has written 1 rows and this one has 0 in dec"
    ):
        check(tables, {**decided, DECISIONS.name: held[DECISIONS.name]})


def test_a_decision_that_the_first_attempt_did_not_take_is_refused_when_a_later_table_was_written(tables, said):
    decided, held, _ = said
    write(tables, held, HOLDS)
    with pytest.raises(ReplayDiffers, match="has written 0 rows and this one has 1 in decisions"):
        check(tables, {**held, DECISIONS.name: decided[DECISIONS.name]})


def test_rows_that_differ_in_one_value_are_refused(tables, said):
    write(tables, said[0], DECISIONS)
    other = with_column(said[0][DECISIONS.name], "reason", "bytesRateIn")
    with pytest.raises(ReplayDiffers, match="has written 1 rows, of which some differ in decisions"):
        check(tables, {**said[0], DECISIONS.name: other})


def test_a_new_batch_and_one_of_another_release_that_says_the_same_are_not_held_up(tables, said):
    check(tables, said[0])
    write(tables, said[0], DECISIONS)
    check(tables, {**said[0], DECISIONS.name: with_column(said[0][DECISIONS.name], "engine_version", "999")})


def test_loads_that_spark_has_written_are_held_against_by_number(tables, said):
    write(tables, said[0], SEGMENT_LOAD)
    attempt = FirstAttempt(tables, APP, 7)
    attempt.check_number(SEGMENT_LOAD, said[0][SEGMENT_LOAD.name].num_rows)
    with pytest.raises(ReplayDiffers, match="in segment_load"):
        attempt.check_number(SEGMENT_LOAD, 0)
