"""Events of releases that wrote their bodies only: the views read from those what the columns say."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake.tables import create_lake
from ledger.sql import LakeSql
from ledger.views.catalogue import views
from schemas.tables import EVENTS
from tests.ledger.views.recorded import TABLES

COLUMNS = ("in_columns", "life", "epoch", "active_segments", "decision_id", "subscription", "subscription_type",
           "consumers")  # fmt: skip
AT = "TIMESTAMP '2026-11-22 11:41:00'"


def without_columns(rows):
    """As an older release wrote them."""
    for name in COLUMNS:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.nulls(len(rows), rows.schema.field(place).type))
    return rows


@pytest.fixture(scope="module", params=["all of them", "the first half"])
def older(request, story, tmp_path_factory):
    """The recorded lake, of which an older release wrote all events, or those of the first half."""
    folder = tmp_path_factory.mktemp("older")
    made = create_lake(folder)
    for table in TABLES:
        rows = story.bucket.table(table)
        if table is EVENTS:
            half = len(rows) if request.param == "all of them" else len(rows) // 2
            write_deltalake(made[EVENTS.name], without_columns(rows.slice(0, half)), mode="append")
            rows = rows.slice(half)
        write_deltalake(made[table.name], rows, mode="append")
    return str(folder)


@pytest.mark.parametrize("name", ["layout_intervals", "layout_at", "consumers_waiting", "segment_hours"])
def test_a_view_says_of_older_events_what_it_says_of_those_in_columns(name, lake, older):
    question = f"SELECT * FROM {name}{f'({AT})' if views()[name].parameters else ''}"
    now, then = (LakeSql(one).ask(question).read_all().to_pylist() for one in (lake, older))
    assert now
    assert sorted(map(repr, now)) == sorted(map(repr, then))


def test_the_columns_say_what_the_bodies_say(story):
    rows = story.bucket.table(EVENTS).to_pylist()
    assert {row["in_columns"] for row in rows} == {True}
    assert {row["type"] for row in rows if row["epoch"] is not None} == {"layout"}
    assert {row["type"] for row in rows if row["consumers"] is not None} == {"consumer"}
