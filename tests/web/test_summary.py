"""The numbers above the topics, and the fleet over time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from deltalake import write_deltalake

from anabranch.auth.callers import Access
from anabranch.auth.tokens import add_token
from anabranch.history.picture import BrakesView, DecisionView, ExecutorView
from anabranch.web.fleet import REMOTE_LOOK_SECONDS, WatchedFleet
from anabranch.web.pages import fleet
from anabranch.web.pages.summary import needs_of_processes, summarize
from anabranch.web.rows import PageFreshness, TopicRow
from anabranch.web.trend import FleetPoint, FleetTrend
from lake.brakes import BrakeLog, SafeguardAct
from lake.tables import create_table
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import ALERTS, AlertRow
from tests.local.lake import (
    ORDERS,
    at,
    batch,
    consumer_event,
    decision,
    hold,
    layout_event,
    layout_json,
    load,
    outcome,
    policy_event,
    write,
)
from tests.web.pages import page

WHOLE = layout_json((0, 0x0000, 0xFFFF))
CLICKS = "topic://acme/bills/clicks"


def row(number, **changed):
    whole = {
        "name": f"topic://acme/shop/t{number}",
        "namespace": "acme/shop",
        "segments": 2,
        "load": 0.5,
        "is_cold": False,
        "gate": "",
        "waiting": "",
        "is_open": False,
        "acted_at": None,
        "consumers": 0,
        "turns": (),
        "version": 1,
    }
    return TopicRow(**{**whole, **changed})


def test_summary_counts_topics_over_open_held_and_short():
    rows = [
        row(1, load=1.5, load_sum=2.5, hot_from=at(0), gate="split-cooldown", short=3),
        row(2, load=3.0, load_sum=3.0, hot_from=at(60), gate="split-cooldown"),
        row(3, load=1.0, is_open=True, waiting="approval"),
        row(4, load=None, is_open=True, stuck_from=at(30)),
    ]
    summary = summarize(rows, [], [], at(100))
    assert (summary.topics, summary.segments, summary.unseen, summary.load) == (4, 8, 1, 5.5)
    assert (summary.over, summary.worst, summary.over_seconds) == (2, rows[1], 100.0)
    assert (summary.open, summary.waiting, summary.stuck, summary.short) == (2, [("approval", 1)], 1, 3)
    assert (summary.held, summary.gates) == (2, [("split-cooldown", 2)])
    assert [need.sentence for need in summary.needs] == [
        "1 topic is stuck, the first for 70 s",
        "1 decision waits for approval",
    ]


def test_stuck_topics_are_told_since_the_first():
    stuck = [row(number, is_open=True, stuck_from=at(since)) for number, since in ((1, 60), (2, 30), (3, 101))]
    waiting = [row(number, is_open=True, waiting="approval") for number in (4, 5)]
    assert [need.sentence for need in summarize([*stuck, *waiting], [], [], at(100)).needs] == [
        "2 topics are stuck, the first for 70 s",
        "2 decisions wait for approval",
    ]


def test_decisions_of_the_last_hour_are_counted():
    decided = [
        DecisionView(f"d{second}", ORDERS, action, (0,), "msgRateIn", "tick", at(second), status, None, None)
        for second, action, status in (
            (0, "merge", "applied"),
            (1, "split", "applied"),
            (2, "split", "applied"),
            (3, "split", None),
        )
    ]
    assert summarize([], decided, [], at(3_601)).hour == [("splits applied", 2), ("split not begun", 1)]


ALERTS_ON_RECORD = [{"alert": "TopicHot", "status": "firing"}, {"alert": "LoadMissing", "status": "pending"}]


def test_quiet_fleet_needs_nobody():
    summary = summarize([row(1)], [], [], at(0))
    assert (summary.over, summary.worst, summary.over_seconds, summary.needs) == (0, None, None, [])


@pytest.mark.parametrize(
    ("batch_at", "executor", "alerts", "sentences"),
    [
        (at(99), ExecutorView("one", (0,), 1, False), [], []),
        (at(0), ExecutorView("one", (0,), 1, False), [], ["the job has committed nothing for 100 s"]),
        (at(99), ExecutorView("one", (0,), 1, True), [], ["no executor acts"]),
        (at(99), ExecutorView("one", (), 1, False), [], ["no executor acts"]),
        (None, ExecutorView("one", (0,), 1, False), [], ["the job has committed nothing yet"]),
        (at(99), ExecutorView("one", (0,), 1, False), ALERTS_ON_RECORD, ["1 alert fires: TopicHot"]),
    ],
)
def test_process_that_is_down_needs_a_person(batch_at, executor, alerts, sentences):
    freshness = PageFreshness(at(100), batch_at, None, False, 15.0)
    needs = needs_of_processes(freshness, BrakesView((executor,)), alerts)
    assert [need.sentence for need in needs] == sentences


def test_nothing_needs_a_person_while_the_record_is_read():
    assert needs_of_processes(PageFreshness(at(0), None, None, True), BrakesView(), []) == []


@pytest.fixture
def fleet_lake(tmp_path):
    """A topic that is over its threshold and one that is not, decisions, and an alert that fires."""
    lake, now = str(tmp_path / "lake"), datetime.now(timezone.utc)
    write(lake, policy_event(0), layout_event(WHOLE, 0), layout_event(WHOLE, 0, topic=CLICKS), batch(0, 1))
    write(lake, load(0, 23_000, 1), load(0, 5_000, 1, topic=CLICKS), consumer_event("billing", 3, 1))
    sharing = consumer_event("audit", 9, 1)
    write(lake, sharing.model_copy(update={"body": sharing.body.replace("STREAM", "QUEUE")}))
    write(lake, hold(4, "split-cooldown"))
    recent = {"decided_at": now - timedelta(minutes=5), "day": now.date()}
    write(lake, decision(2, **{**recent, "subject": CLICKS}), outcome("d1", "applied", 3, subject=CLICKS))
    alert = AlertRow(
        alert_id="a1",
        alert="TopicHot",
        status="firing",
        subject=ORDERS,
        labels="{}",
        at=now,
        since=now,
        summary="hot",
        day=now.date(),
    )
    write_deltalake(create_table(lake, ALERTS), to_arrow(ALERTS, [alert]), mode="append")
    return lake


def test_fleet_page_opens_with_its_numbers(fleet_lake):
    text = page(fleet_lake).get("/").text
    begin = text.index('id="summary"')
    summary = text[begin : text.index("</section>", begin)]
    assert "<strong>2</strong> topics" in summary
    assert '<strong>1</strong> <a id="n-over"' in summary
    assert "<bdi>orders</bdi></a> at 230 %" in summary
    assert "<strong>2</strong> consumers without a segment" in summary
    assert "<strong>1</strong> decision in the last hour" in summary
    assert "1 split applied" in summary
    assert "1 alert fires: TopicHot" in summary
    assert "no executor acts" in summary
    assert text.index('id="summary"') < text.index('data-chart="fleet"') < text.index('class="fleet"')


def test_hour_of_more_decisions_than_are_kept_is_told_as_at_least(fleet_lake, monkeypatch):
    shown = page(fleet_lake)
    assert "<strong>1</strong> decision in" in shown.get("/").text
    monkeypatch.setattr(fleet, "MAX_DECISIONS", 1)
    assert "<strong>at least 1</strong> decisions in" in shown.get("/").text


def test_decisions_of_the_last_hour_are_counted_in_words():
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    of_each = [("split", 2), ("merge", 1)]
    decided = [
        DecisionView(f"{action}{number}", ORDERS, action, (0,), "msgRateIn", "tick", now, "applied", now, None)
        for action, count in of_each
        for number in range(count)
    ]
    assert summarize([], decided, [], now).hour == [("splits applied", 2), ("merge applied", 1)]


def test_token_of_a_namespace_sees_numbers_of_it_alone(fleet_lake, tmp_path):
    token = add_token(tmp_path / "tokens", "ann", "read", ["acme/bills"])
    shown = page(fleet_lake, Access(tmp_path / "tokens"))
    text = shown.get("/", authorization=f"Bearer {token}").text
    assert "<strong>1</strong> topic\n" in text
    assert '<strong>0</strong> <a id="n-over"' in text
    assert ("orders" in text, "executor" in text, "alert fires" in text) == (False, False, False)
    assert shown.get("/fleet/trend", authorization=f"Bearer {token}").status_code == 403


def test_token_of_a_namespace_sees_actions_and_pauses_of_it_alone(fleet_lake, tmp_path):
    pause = SafeguardAct("pause", CLICKS, "upgrade", "ann", datetime.now(timezone.utc))
    BrakeLog(fleet_lake).write(lambda _: [pause])
    seen = {}
    for namespace in ("acme/bills", "acme/shop"):
        tokens = tmp_path / namespace.replace("/", "-")
        token = add_token(tokens, "ann", "read", [namespace])
        text = page(fleet_lake, Access(tokens)).get("/", authorization=f"Bearer {token}").text
        seen[namespace] = [words in text for words in ("Recent actions", "1 paused", "<strong>1</strong> decision in")]
    assert seen == {"acme/bills": [True] * 3, "acme/shop": [False] * 3}


def test_search_keeps_the_filters(fleet_lake):
    text = page(fleet_lake).get("/?only=hot&order=name&gate=split-cooldown").text
    for field in ('name="only" value="hot"', 'name="order" value="name"', 'name="gate" value="split-cooldown"'):
        assert f'<input type="hidden" {field}>' in text


def test_trend_adds_up_the_fleet_and_shows_gaps():
    trend = FleetTrend()
    assert trend.is_due(at(0))
    trend.add(at(0), [row(1, load_sum=0.5), row(2, load=2.0, load_sum=2.5)], applied=7)
    assert (trend.is_due(at(9)), trend.is_due(at(10))) == (False, True)
    trend.add(at(10), [row(1, load_sum=0.5)], applied=9)
    trend.add(at(100), [], applied=9)
    points = trend.since(at(0))
    assert [(point.load, point.segments, point.over, point.actions) for point in (points[0], points[1], points[3])] == [
        (3.0, 4, 1, 0),
        (0.5, 2, 0, 2),
        (0, 0, 0, 0),
    ]
    assert points[2] == at(20)
    assert trend.since(at(50)) == [points[3]]


def test_points_of_an_unopened_remote_page_are_no_gaps():
    trend, pause = WatchedFleet("s3://bucket/lake").trend, 1.5 * REMOTE_LOOK_SECONDS[1]
    for number in range(3):
        trend.add(at(number * pause), [], applied=0)
    assert [type(point) for point in trend.since(at(0))] == [FleetPoint] * 3


def test_trend_of_the_page_is_columns(fleet_lake):
    shown = page(fleet_lake)
    columns = shown.get("/fleet/trend?last=15m").json()
    assert (columns["load"], columns["segments"], columns["over"]) == ([2.8], [2], [1])
    assert columns["window"][1] - columns["window"][0] == 900
    assert len(columns["at"]) == 1
    shown.app.state.fleet.trend.add(datetime.now(timezone.utc), [], applied=0)
    begun = shown.get("/fleet/trend?last=15m").json()
    assert begun["window"][0] == begun["at"][0] == columns["at"][0]
