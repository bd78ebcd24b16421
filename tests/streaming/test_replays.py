"""What the lake holds of a batch is held against what its repetition says, before anything is written."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.tables import OpenTable, create_lake
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.sink.replays import FirstAttempt, ReplayDiffers, RowsDigest
from tests.engine.records import consumers, record, stats
from tests.engine.test_engine import NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket, hot
from tests.examples import examples

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


class Shuffled:
    """Rows in another order, one at a time."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return self._rows.num_rows

    def __iter__(self):
        return (self._rows.slice(place, 1) for place in reversed(range(len(self))))


def check(tables, rows):
    attempt = FirstAttempt(tables, APP, 7)
    for table in WRITTEN:
        attempt.check(table, Shuffled(rows[table.name]))


@pytest.mark.parametrize(
    ("which", "written"), [(0, 0), (0, 1), (0, 3), (0, 5), (1, 0), (1, 2), (1, 3), (2, 0), (2, 3), (2, 4), (2, 5)]
)
def test_equal_repetition_continues_first_attempt(tables, said, which, written):
    """It continues from any point that the first attempt had reached: behind each table that the batch has rows of."""
    write(tables, said[which], *WRITTEN[:written])
    check(tables, said[which])


def test_written_decision_not_repeated_is_refused(tables, said):
    decided, held, _ = said
    write(tables, decided, DECISIONS)
    with pytest.raises(
        ReplayDiffers, match=r"batch 7 .* its first attempt has written 1 rows and this one has 0 in dec"
    ):
        check(tables, {**decided, DECISIONS.name: held[DECISIONS.name]})


def test_new_decision_refused_after_later_table(tables, said):
    """The first attempt wrote a later table without taking this decision."""
    decided, held, _ = said
    write(tables, held, HOLDS)
    with pytest.raises(ReplayDiffers, match="has written 0 rows and this one has 1 in decisions"):
        check(tables, {**held, DECISIONS.name: decided[DECISIONS.name]})


def test_rows_that_differ_in_one_value_are_refused(tables, said):
    write(tables, said[0], DECISIONS)
    other = with_column(said[0][DECISIONS.name], "reason", "bytesRateIn")
    with pytest.raises(ReplayDiffers, match="has written 1 rows, of which some differ in decisions"):
        check(tables, {**said[0], DECISIONS.name: other})


def test_new_and_equal_batches_not_held_up(tables, said):
    """An equal one may be of another release."""
    check(tables, said[0])
    write(tables, said[0], DECISIONS)
    check(tables, {**said[0], DECISIONS.name: with_column(said[0][DECISIONS.name], "engine_version", "999")})


def test_events_of_older_release_not_held_up(tables, said):
    """It began them without the last columns."""
    older = said[0][EVENTS.name]
    for name in ("in_columns", "life", "epoch", "active_segments", "decision_id", "subscription", "consumers"):
        older = with_column(older, name, None)
    write(tables, said[0], DECISIONS)
    write(tables, {EVENTS.name: older}, EVENTS)
    check(tables, said[0])
    other = with_column(said[0][EVENTS.name], "body", "{}")
    with pytest.raises(ReplayDiffers, match="some differ in events"):
        check(tables, {**said[0], EVENTS.name: other})


def test_table_committed_alongside_may_be_missing(tables, said):
    write(tables, said[0], DECISIONS, SEGMENT_LOAD)
    check(tables, said[0])
    other = with_column(said[0][SEGMENT_LOAD.name], "segment_id", 99)
    with pytest.raises(ReplayDiffers, match="some differ in segment_load"):
        check(tables, {**said[0], SEGMENT_LOAD.name: other})


@examples(15)
@given(st.data())
def test_rows_compared_by_value_not_order(data):
    text = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab"]))
    rows = data.draw(
        st.lists(
            st.tuples(text, text, st.one_of(st.none(), st.sampled_from([0.0, 1.0, -1.0])), st.sampled_from([0, 1, -1])),
            max_size=5,
        )
    )
    others = data.draw(st.one_of(st.permutations(rows), st.just(rows[:-1]), st.just([(*one[:3], 7) for one in rows])))

    def of(values):
        columns = {field.name: [None] * len(values) for field in arrow_schema(HOLDS.row)}
        for place, name in enumerate(("gate", "inputs", "measured", "seq")):
            columns[name] = [one[place] for one in values]
        nullable = pa.schema([(field.name, field.type) for field in arrow_schema(HOLDS.row)])
        return RowsDigest.of(HOLDS, [pa.table(columns, schema=nullable)])

    assert (of(rows) == of(others)) == (sorted(rows, key=repr) == sorted(others, key=repr))
