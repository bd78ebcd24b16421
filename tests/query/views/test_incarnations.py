"""Views on streams with deletions, recreations and late announcements, against the engine's state at every batch."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise

import pytest

from anabranch.query.sql import LakeSql
from lake.tables import create_lake
from schemas.tables.rows import DECISIONS
from tests.local.lake import at, decision, load, millis, write
from tests.query.views.incarnations import Incarnations

HOUR = timedelta(hours=1)


HALF_LOST, REPLACED = "half of the deletions lost", "replaced announcers wake up"
DATED_LATE = "late ones dated after the deletion"


@pytest.fixture(
    scope="module",
    params=[
        f"all, {HALF_LOST}, {DATED_LATE}",
        f"some, {REPLACED}",
        *(
            pytest.param(one, marks=pytest.mark.soak)
            for one in (
                "all",
                "none",
                "some",
                f"all, {REPLACED}",
                f"none, {REPLACED}",
                f"all, {HALF_LOST}",
                f"all, {DATED_LATE}",
            )
        ),
    ],
)
def stream(request):
    """A stream in which all announcements say their incarnation, none, or those of some topics."""
    says_life, *also = request.param.split(", ")
    if REPLACED in also:
        return Incarnations(seed=12, says_life=says_life, sender=7).run()
    silent = 0.5 if HALF_LOST in also else 0.0
    return Incarnations(seed=11, says_life=says_life, silent=silent, is_dated_late=DATED_LATE in also).run()


@pytest.fixture(scope="module")
def ask(stream, tmp_path_factory):
    """A question to the lake that the stream left, and its rows."""
    lake = stream.write(tmp_path_factory.mktemp("incarnations") / "lake")
    questions = LakeSql(lake)
    return lambda sql: questions.rows(sql, is_own=True)


def standing(rows, at, begins, ends):
    """Rows whose interval holds an instant."""
    return [row for row in rows if row[begins] <= at and (row[ends] is None or row[ends] > at)]


def literal(at):
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'"


def test_stream_recreates_topics_and_is_late(stream, ask):
    ends = ask("SELECT * FROM topic_ends")
    announced = ask("SELECT * FROM events WHERE type = 'layout' AND cause = 'deleted'")
    assert stream.late > 20
    assert len(ends) > 8
    assert stream.silent or len(ends) < len(announced)


def test_layouts_are_those_the_engine_knew(stream, ask):
    spans = ask("SELECT topic, epoch, active_segments, valid_from, valid_to FROM layout_spans")
    for known in stream.known:
        found = {
            row["topic"]: (row["epoch"], row["active_segments"])
            for row in standing(spans, known.at, "valid_from", "valid_to")
        }
        assert found == {topic: (epoch, len(active)) for topic, (epoch, active) in known.layouts.items()}, known.at


def test_life_grows_with_each_recreation(ask):
    rows = ask("SELECT topic, life, epoch FROM layout_spans ORDER BY topic, valid_from, kafka_offset")
    for before, after in pairwise(rows):
        if before["topic"] == after["topic"]:
            assert (after["life"] > before["life"]) == (after["epoch"] == 0)
            assert after["life"] >= before["life"]


def test_load_at_is_what_the_engine_knew(stream, ask):
    for known in stream.known[::18]:
        found = ask(f"SELECT topic, segment_id, msg_rate_in FROM load_at({literal(known.at)})")
        expected = {
            (topic, segment): known.loads.get((topic, segment))
            for topic, (_, active) in known.layouts.items()
            for segment in active
        }
        assert {(row["topic"], row["segment_id"]): row["msg_rate_in"] for row in found} == expected, known.at


def test_consumers_wait_as_the_engine_knew(stream, ask):
    rows = ask("SELECT * FROM consumers_waiting")
    for known in stream.known:
        found = {
            (row["topic"], row["subscription"]): (row["type"], row["waiting"])
            for row in standing(rows, known.at, "waiting_from", "waiting_to")
        }
        assert found == known.waiting, known.at
    assert any(known.waiting for known in stream.known)


def test_holds_are_those_the_engine_knew(stream, ask):
    rows = ask("SELECT subject, gate, held_from, held_until FROM hold_intervals")
    for known in stream.known:
        found = {row["subject"]: row["gate"] for row in standing(rows, known.at, "held_from", "held_until")}
        assert found == known.held, known.at
    now = ask("SELECT subject, gate FROM holds_now")
    assert {row["subject"]: row["gate"] for row in now} == stream.known[-1].held


def test_thrash_stays_within_an_incarnation(stream, ask):
    pairs = {
        (first.decision_id, second.decision_id, first.incarnation == second.incarnation)
        for first in stream.applied
        for second in stream.applied
        if first.topic == second.topic
        and first.action != second.action
        and timedelta(0) <= second.at - first.at <= HOUR
        and first.children & second.segments
    }
    found = {(row["decision_id"], row["undone_by"]) for row in ask("SELECT decision_id, undone_by FROM thrash")}
    assert found == {(first, second) for first, second, is_same in pairs if is_same}
    assert found
    assert not all(is_same for *_, is_same in pairs)
    health = ask(f"SELECT undone_last_hour FROM fleet_health_at({literal(stream.known[-1].at)})")
    second = {one.decision_id: one.at for one in stream.applied}
    assert health == [{"undone_last_hour": sum(stream.known[-1].at - second[undoing] < HOUR for _, undoing in found)}]


def test_time_over_threshold_per_incarnation(stream, ask):
    over, since = {}, {}
    for known in stream.known:
        rates = {key: rate for key, rate in known.loads.items() if rate > 10_000}
        since = {key: since.get(key, known.at) for key in rates}
        over[known.at] = since
    rows = ask("SELECT * FROM over_threshold WHERE reason = 'msgRateIn'")
    splits = [row for row in stream.bucket.table(DECISIONS).to_pylist() if row["reason"] == "msgRateIn"]
    assert len(rows) == len(splits) > 10
    for row in rows:
        key = row["topic"], row["segment_id"]
        # What was over is so in the batch's state, unless the split was decided on a load that did not last the batch.
        assert row["over_since"] == over[row["decided_at"]][key], row


@pytest.mark.parametrize("created", [100, 0])
def test_time_over_threshold_without_events(created, tmp_path):
    """It begins with the topic when its events are deleted."""
    lake = str(tmp_path / "lake")
    create_lake(lake)
    segment = {"segmentId": 0, "createdAtMs": millis(created) if created else 0}
    inputs = {"policy": {"splitMsgRateInThreshold": 10_000.0}, "layout": {"segments": {"0": segment}}}
    rates = [load(0, 30_000.0, 50), load(0, 20_000.0, 110)]
    first = [rate.model_copy(update={"cause": "first"}) for rate in rates]
    write(lake, *first, load(0, 25_000.0, 115), decision(120, inputs=json.dumps(inputs, separators=(",", ":"))))
    (row,) = LakeSql(lake).ask("SELECT over_since, rate FROM over_threshold").read_all().to_pylist()
    assert row == {"over_since": at(110 if created else 50), "rate": 25_000.0}
