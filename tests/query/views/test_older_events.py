"""Events of releases that wrote their bodies only: the views read from those what the columns say."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from anabranch.query.sql import LakeSql
from anabranch.query.views.catalogue import views
from lake.tables import create_lake
from schemas.tables.rows import EVENTS
from tests.examples import only_first
from tests.local.lake import batch, consumer_event, layout_event, layout_json, write
from tests.query.views.recorded import TABLES

pytestmark = pytest.mark.xdist_group("views")

COLUMNS = (
    "in_columns",
    "life",
    "epoch",
    "active_segments",
    "decision_id",
    "subscription",
    "subscription_type",
    "consumers",
)
AT = "TIMESTAMP '2026-11-22 11:41:00'"


def without_columns(rows):
    """As an older release wrote them."""
    for name in COLUMNS:
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.nulls(len(rows), rows.schema.field(place).type))
    return rows


@pytest.fixture(scope="module", params=only_first(1, ["the first half", "all of them"]))
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
def test_older_events_give_equal_view_rows(name, lake, older):
    question = f"SELECT * FROM {name}{f'({AT})' if views()[name].parameters else ''}"
    now, then = (LakeSql(one).rows(question, is_own=True) for one in (lake, older))
    assert now
    assert sorted(map(repr, now)) == sorted(map(repr, then))


def test_the_columns_say_what_the_bodies_say(story):
    rows = story.bucket.table(EVENTS).to_pylist()
    assert {row["in_columns"] for row in rows} == {True}
    assert {row["type"] for row in rows if row["epoch"] is not None} == {"layout"}
    assert {row["type"] for row in rows if row["consumers"] is not None} == {"consumer"}


def test_escaped_older_name_is_the_subscription(tmp_path):
    name = "sub 'q\" \\ 漢 😀"
    events = [
        layout_event(layout_json((0, 0, 65_535)), 0),
        # Without columns, and the name with escapes, as releases before and other clients wrote it.
        consumer_event(name, 5, 10),
        consumer_event(name, 1, 70).model_copy(
            update={"in_columns": True, "subscription": name, "subscription_type": "STREAM", "consumers": 1}
        ),
    ]
    assert "\\u6f22" in events[1].body
    write(str(tmp_path), *events, batch(600, 600))
    [row] = LakeSql(str(tmp_path)).ask("SELECT * FROM consumers_waiting").read_all().to_pylist()
    assert (row["subscription"], row["waiting"], row["consumer_seconds"]) == (name, 4, 4 * 60.0)
