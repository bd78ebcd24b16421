"""An outline of `batches` orders rows as the whole table does, and windows leave nothing out."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pyarrow as pa
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from engine.history import Batches, columns_of
from lake.batches import first_batch_after, last_batch, outline_of_batches, read_batches, read_outline
from lake.tables import create_table
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DAY_MS = 86_400_000
COLUMNS = columns_of(BATCHES)
STEPS = st.lists(
    st.tuples(st.sampled_from([1, 3, 60_000, DAY_MS // 2, -2, -90_000]), st.sampled_from(["on", "on", "on", "anew"])),
    min_size=1,
    max_size=40,
)


def batches(keys):
    """Rows of `batches`, of (generation, number, milliseconds); what is not told is 1."""
    schema = arrow_schema(BATCHES.row)
    rows = [
        {
            "generation": generation,
            "batch_id": number,
            "batch_at": EPOCH + timedelta(milliseconds=at),
            "committed_at": EPOCH + timedelta(milliseconds=at),
            "day": (EPOCH + timedelta(milliseconds=at)).date(),
        }
        for generation, number, at in keys
    ]
    ones = {field.name: 1 if pa.types.is_integer(field.type) else 1.0 for field in schema if not field.nullable}
    return pa.Table.from_pylist([{**ones, **row} for row in rows], schema)


def ran(steps):
    """The keys of a job whose clock goes as the steps say, and which begins anew where they say so."""
    keys, generation, number, at = [], 0, 0, 10 * DAY_MS
    for step, what in steps:
        at += step
        if what == "anew":
            # A generation begins behind all before it: two of one beginning cannot be told apart.
            generation, number, at = generation + 1, 0, max(at, *(key[2] for key in keys), 0) + 1 if keys else at
        keys.append((f"g{generation}", number, at))
        number += 1
    return keys


@given(STEPS, st.data())
def test_outline_orders_like_the_whole_table(steps, data):
    keys = ran(steps)
    asked = data.draw(st.lists(st.sampled_from(keys), max_size=5))
    whole = batches(keys)
    more = pa.chunked_array([[key in asked for key in keys]], pa.bool_())
    full, short = Batches(whole), Batches(outline_of_batches(whole, more))
    assert short.generations == full.generations
    for _, number, at in asked:
        assert short.place(number, at) == full.place(number, at)
        assert short.is_set_back(number, at) == full.is_set_back(number, at)
        assert short.is_complete(number, at)
    for _, _, at in keys:
        instant = EPOCH + timedelta(milliseconds=at)
        assert short.is_parted(instant) == full.is_parted(instant)
    for midnight in {at // DAY_MS for _, _, at in keys}:
        instant = EPOCH + timedelta(days=midnight)
        by_day = Batches(
            pa.concat_tables(
                outline_of_batches(batches([key for key in keys if key[2] // DAY_MS == day]))
                for day in sorted({at // DAY_MS for _, _, at in keys})
            )
        )
        assert by_day.is_parted(instant) == full.is_parted(instant)
        assert by_day.begins_before(instant.date()) == full.begins_before(instant.date())
        assert by_day.goes_on_after(instant) == full.goes_on_after(instant)


def test_batch_at_midnight_is_of_the_day_it_begins():
    midnight, day = EPOCH + timedelta(days=10), 10 * DAY_MS
    assert Batches(batches([("g", 0, day - 1), ("g", 1, day)])).is_parted(midnight)
    assert not Batches(batches([("g", 0, day), ("g", 1, day - 1)])).is_parted(midnight)
    assert Batches(batches([("g", 0, day)])).goes_on_after(midnight)
    assert not Batches(batches([("g", 0, day - 1)])).goes_on_after(midnight)


@given(STEPS)
def test_row_of_a_left_out_batch_keeps_its_generation(steps):
    """A hold may be of a batch whose own row is forgotten: it comes before the rows of later batches."""
    keys = ran(steps)
    is_set_back = any(after[2] <= before[2] for before, after in pairwise(keys))
    full, short = Batches(batches(keys)), Batches(outline_of_batches(batches(keys)))
    for _, number, at in [] if is_set_back else keys:
        assert short.place(number, at) == full.place(number, at)


def test_windows_of_a_lake_hold_every_batch(tmp_path):
    lake = str(tmp_path / "lake")
    assert last_batch(lake) is None
    assert len(read_outline(lake, COLUMNS)) == 0
    keys = [("g", number, 10 * DAY_MS + number * DAY_MS // 4) for number in range(12)]
    table = create_table(lake, BATCHES)
    for key in keys:
        write_deltalake(table, batches([key]), mode="append")
    instant = lambda number: EPOCH + timedelta(milliseconds=keys[number][2])  # noqa: E731
    assert last_batch(lake) == instant(11)
    assert first_batch_after(lake, instant(11)) is None
    assert first_batch_after(lake, instant(3)) == instant(4)
    assert first_batch_after(lake, instant(3) - timedelta(milliseconds=1)) == instant(3)
    assert first_batch_after(lake, EPOCH) == instant(0)
    ids = lambda rows: sorted(rows["batch_id"].to_pylist())  # noqa: E731
    assert ids(read_batches(lake, COLUMNS)) == [*range(12)]
    assert ids(read_batches(lake, COLUMNS, instant(2), instant(9))) == [*range(2, 10)]
    assert ids(read_outline(lake, COLUMNS, instant(9))) == [0, 3, 4, 7, 8, 9]
    asked = pa.array([instant(1)], pa.timestamp("us", tz="UTC"))
    assert ids(read_outline(lake, COLUMNS, instant(5), asked)) == [0, 1, 3, 4, 5]
