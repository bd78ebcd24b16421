"""Every view against a count by hand, row by row, of what the job's own engine has written."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest

from anabranch.query.sql import LakeSql
from anabranch.query.views.catalogue import views
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from tests.examples import only_first
from tests.query.views.recorded import START

pytestmark = pytest.mark.xdist_group("views")

HOUR = timedelta(hours=1)
INSTANTS = [datetime.fromtimestamp(START / 1000, timezone.utc) + timedelta(minutes=m) for m in (0, 7, 101, 121, 190)]


@pytest.fixture(scope="session")
def ask(lake):
    """A question, and its rows."""
    questions = LakeSql(lake)
    return lambda sql: questions.rows(sql, is_own=True)


@pytest.fixture(scope="session")
def layouts(story):
    """By topic, in order: since when, and the layout in JSON; None: deleted."""
    found = defaultdict(list)
    for row in story.bucket.table(EVENTS).to_pylist():
        if row["type"] == "layout":
            layout = None if row["cause"] == "deleted" else json.loads(row["body"])["layout"]
            found[row["subject"]].append((row["accepted_at"], layout))
    return found


def active(layout):
    ranges = {
        one["segmentId"]: one["hashRange"]
        for one in (layout or {"segments": {}})["segments"].values()
        if one["state"] == "ACTIVE"
    }
    return {number: (one["start"], one["end"]) for number, one in ranges.items()}


def newest(rows, at):
    """The last of (instant, value) that is not after an instant."""
    return next((value for since, value in reversed(rows) if since <= at), None)


def literal(at):
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}'"


@pytest.mark.parametrize("view", views().values(), ids=lambda view: view.name)
def test_a_view_has_the_columns_that_are_described(view, lake, lake_of_clusters, lake_of_switch):
    arguments = f"({literal(INSTANTS[2])})" if view.parameters else ""
    lakes = {"bundle": lake_of_clusters, "broker": lake_of_clusters, "bookie": lake_of_switch}
    sql = LakeSql(lakes.get(view.name.partition("_")[0], lake))
    rows = sql.rows(f"SELECT * FROM {view.name}{arguments}", is_own=True)
    assert rows
    assert list(rows[0]) == [column.name for column in view.columns]


@pytest.mark.parametrize("at", INSTANTS)
def test_layout_and_load_at_instant_are_newest_before(at, ask, layouts, story):
    expected = {
        (topic, number): hashes
        for topic, told in layouts.items()
        for number, hashes in active(newest(told, at)).items()
    }
    rows = ask(f"SELECT * FROM layout_at({literal(at)})")
    assert {(row["topic"], row["segment_id"]): (row["hash_start"], row["hash_end"]) for row in rows} == expected
    loads = defaultdict(list)
    for row in story.bucket.table(SEGMENT_LOAD).to_pylist():
        loads[row["topic"], row["segment_id"]].append((row["accepted_at"], row["msg_rate_in"]))
    rows = ask(f"SELECT * FROM load_at({literal(at)})")
    found = {(row["topic"], row["segment_id"]): row["msg_rate_in"] for row in rows}
    assert found == {key: newest(loads[key], at) for key in expected}


def test_holds_end_with_next_hold_or_decision(ask, story, layouts):
    points = defaultdict(list)
    for row in story.bucket.table(HOLDS).to_pylist():
        points[row["subject"]].append((row["since"], 1, row["gate"]))
    for row in story.bucket.table(DECISIONS).to_pylist():
        points[row["subject"]].append((row["decided_at"], 1, None))
    for topic, told in layouts.items():
        points[topic] += [(at, 0, None) for at, layout in told if layout is None]
    expected = []
    for topic, found in points.items():
        for (at, _, gate), following in pairwise([*sorted(found, key=lambda one: one[:2]), None]):
            if gate is not None:
                expected.append((topic, gate, at, following and following[0]))
    rows = ask("SELECT subject, gate, held_from, held_until FROM hold_intervals")
    assert sorted(map(str, (tuple(row.values()) for row in rows))) == sorted(map(str, expected))


def test_gate_hours_sum_to_held_time(ask):
    held = ask("SELECT sum(seconds) AS seconds, count(*) AS holds FROM hold_intervals")[0]
    hours = ask("SELECT sum(subject_minutes) * 60 AS seconds, sum(began) AS holds FROM gate_hours")[0]
    assert (round(hours["seconds"], 3), hours["holds"]) == (round(held["seconds"], 3), held["holds"])
    assert ask("SELECT hour FROM gate_hours WHERE subject_minutes > subjects * 60.000001") == []


def test_decisions_have_outcome_and_step_latencies(ask, story):
    rows = ask("SELECT * FROM decision_outcomes ORDER BY decided_at")
    assert len(rows) == len(story.bucket.table(DECISIONS))
    assert {row["status"] for row in rows} == {"applied", "failed"}
    assert {(row["intent_seconds"], row["end_seconds"], row["commit_seconds"]) for row in rows} == {(0.4, 1.5, 0.0)}
    failed = [row for row in rows if row["status"] == "failed"]
    assert [(row["error"], row["seq"]) for row in failed] == [("503 from the broker", 2)]


def test_what_is_undone_within_an_hour_is_thrash(ask, story):
    kids = {}
    actions = []
    for row in story.outcomes:
        if row["status"] == "applied":
            decision = next(one for one in story.decided if one["decision_id"] == row["decision_id"])
            segments = json.loads(decision["arguments"])["segments"]
            seen = json.loads(row["seen"])["segments"]
            actions.append((row["at"], row["subject"], decision["action"], segments, row["decision_id"]))
            kids[row["decision_id"]] = seen[str(segments[0])]["children"]
    expected = {
        (first[4], second[4])
        for first in actions
        for second in actions
        if first[1] == second[1]
        and first[2] != second[2]
        and timedelta(0) <= second[0] - first[0] <= HOUR
        and set(kids[first[4]]) & set(second[3])
    }
    rows = ask("SELECT decision_id, undone_by FROM thrash")
    assert sorted(map(tuple, (row.values() for row in rows))) == sorted(expected)
    assert {action for _, _, action, *_ in actions} == {"split", "merge"}
    assert expected


def test_segment_hours_sum_layout_durations(ask, story, layouts):
    until = max(story.bucket.table(BATCHES)["batch_at"].to_pylist())
    expected = defaultdict(float)
    for topic, told in layouts.items():
        for (at, layout), (following, _) in pairwise([*told, (until, None)]):
            expected[topic] += len(active(layout)) * (following - at) / HOUR
    rows = ask("SELECT topic, sum(segment_hours) AS hours FROM segment_hours GROUP BY topic")
    assert {row["topic"]: round(row["hours"], 6) for row in rows} == {
        topic: round(hours, 6) for topic, hours in expected.items()
    }


def test_consumers_wait_beyond_segments_except_queues(ask, story, layouts):
    waited = defaultdict(float)
    counts = defaultdict(lambda: defaultdict(list))
    for row in story.bucket.table(EVENTS).to_pylist():
        body = json.loads(row["body"])
        if row["type"] == "consumer" and body["type"] != "QUEUE":
            counts[row["subject"]][body["subscription"]].append((row["accepted_at"], body["consumers"]))
    until = max(story.bucket.table(BATCHES)["batch_at"].to_pylist())
    for topic, subscriptions in counts.items():
        for name, told in subscriptions.items():
            edges = sorted({at for at, _ in (*told, *layouts[topic])} | {until})
            for at, following in pairwise(edges):
                more = (newest(told, at) or 0) - len(active(newest(layouts[topic], at)))
                waited[topic, name] += max(0, more) * (following - at).total_seconds()
    rows = ask("SELECT topic, subscription, sum(consumer_seconds) AS s FROM consumers_waiting GROUP BY 1, 2")
    assert {(row["topic"], row["subscription"]): row["s"] for row in rows} == {
        key: seconds for key, seconds in waited.items() if seconds
    }


def test_load_split_over_threshold_since_first_record(ask, story):
    loads = defaultdict(list)
    for row in story.bucket.table(SEGMENT_LOAD).to_pylist():
        loads[row["topic"], row["segment_id"]].append((row["accepted_at"], row["msg_rate_in"]))
    rows = ask("SELECT * FROM over_threshold")
    splits = [row for row in story.decided if row["reason"] == "msgRateIn"]
    assert len(rows) == len(splits)
    for row in rows:
        before = [one for one in loads[row["topic"], row["segment_id"]] if one[0] <= row["decided_at"]]
        over = None
        for at, rate in before:
            over = (over or at) if rate > 10_000 else None
        assert (row["threshold"], row["over_since"], row["rate"]) == (10_000, over, before[-1][1])
        assert row["seconds_over"] == (row["decided_at"] - over).total_seconds()


@pytest.mark.parametrize("at", only_first(2, [INSTANTS[1], INSTANTS[3], INSTANTS[2], INSTANTS[4]]))
def test_health_agrees_with_its_views(at, ask, layouts):
    row = ask(f"SELECT * FROM fleet_health_at({literal(at)})")[0]
    standing = [active(newest(told, at)) for told in layouts.values()]
    assert (row["topics"], row["active_segments"]) == (sum(map(bool, standing)), sum(map(len, standing)))
    then = literal(at)
    held = ask(
        f"SELECT count(*) AS n FROM hold_intervals WHERE held_from <= {then} AND coalesce(held_until > {then}, true)"
    )
    assert row["topics_held"] == held[0]["n"]
    assert row["dead_letters_last_hour"] == (1 if at < INSTANTS[0] + HOUR else 0)


def test_safeguards_show_active_and_ended(ask, story):
    rows = ask("SELECT * FROM safeguards ORDER BY number")
    begun = INSTANTS[0]

    def minute(number):
        return None if number is None else begun + timedelta(minutes=number)

    told = [
        (row["number"], row["act"], row["in_force"], row["ended_as"], row["ended_at"], row["ended_by"]) for row in rows
    ]
    failed = next(row["at"] for row in story.outcomes if row["status"] == "failed")
    assert told == [
        (number, act, how is None, how, at if isinstance(at, datetime) else minute(at), by)
        for number, act, how, at, by in (
            (1, "pause", "elapsed", 1, None),
            (2, "pause", "resumed", 3, "ann"),
            (3, "stop", "resumed", 3, "ann"),
            (5, "pause", "replaced", 5, "ann"),
            (6, "pause", None, None, None),
            (7, "pause", "resumed", 7, "ann"),
            (9, "approve", "failed", failed, None),
            (10, "pause", None, None, None),
            (11, "reject", None, None, None),
        )
    ]
