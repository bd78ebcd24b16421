"""Rounds over a lake that grows: what is recorded, told, and gone on from after a restart.

Longer than other files: one test for each thing that can change between two rounds.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import yaml

from anabranch.alerts.asking import Asking, rehearse
from anabranch.alerts.evaluator import Evaluator
from anabranch.alerts.notifiers import Notifier
from anabranch.alerts.posting import sender_of
from anabranch.alerts.record import Notice, due_notices, live_alerts, recorded_alerts
from anabranch.alerts.rules import Rule, read_rules, rules_of
from anabranch.alerts.states import Alert
from lake.brakes import BrakeLog, SafeguardAct
from lake.lease import LeaseLost
from lake.tables import OpenTable, create_lake
from tests.alerts.receiver import receiving
from tests.alerts.test_rules import SHIPPED
from tests.lake.object_store import serving
from tests.local.lake import ORDERS, at, batch, dead_letter, decision, hold, layout_event, layout_json, outcome, write
from tests.waiting import wait_until

pytestmark = pytest.mark.process

HOT = "topic://acme/shop/hot"
OPEN = {
    "name": "Open",
    "summary": "{topic} {value}",
    "above": 100,
    "sql": "SELECT d.subject AS topic, date_part('epoch', $now) - date_part('epoch', d.decided_at) AS value "
    "FROM decisions d WHERE NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.decision_id = d.decision_id)",
}


@pytest.fixture
def lake(tmp_path):
    path = str(tmp_path / "lake")
    write(path, decision(0), batch(1, 0))
    return path


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


class Clock:
    def __init__(self, seconds=0.0):
        self.seconds = seconds

    def __call__(self):
        return at(self.seconds)


@contextmanager
def evaluating(lake, receiver, clock, *rules, start=True):
    content = rules_of(
        {
            "rules": list(rules) or [OPEN],
            "destinations": {"hook": {"kind": "webhook", "url": receiver.url, "allow_local": True}},
        },
        "f",
    )
    notifiers = {
        name: Notifier(name, sender_of(name, chosen, content), clock, max_delay=0.05)
        for name, chosen in content.destinations.items()
    }
    evaluator = Evaluator(lake, content, notifiers, clock)
    if start:
        notifiers["hook"].start()
    try:
        yield evaluator
    finally:
        if start:
            notifiers["hook"].stop()
            notifiers["hook"].join(60)


def settled(evaluator, lake):
    evaluator.settle()
    return [row["status"] for row in recorded_alerts(lake) if row["status"] in ("told", "untold")]


def told(receiver):
    return [(body["status"], body["alerts"][0]["annotations"]["summary"]) for body in receiver.bodies]


@pytest.fixture
def store(monkeypatch):
    yield from serving(monkeypatch)


def test_round_on_unchanged_store_reads_nothing(receiver, store):
    create_lake("s3://bucket/lake")
    with evaluating("s3://bucket/lake", receiver, Clock(), start=False) as evaluator:
        evaluator.round()
        store.requests()
        evaluator.round()
        methods = [request.method for request in store.requests()]
    # The record, and the two tables of the rule.
    assert methods == ["HEAD"] * 3


def test_stopped_courier_reports_late_delivery():
    """A delivery that a notifier took on before its stop is recorded even when it ends late."""

    class Heard:
        batch, resend_seconds = 1, None

        def __init__(self):
            self.summaries = []

        def send(self, notices, now):
            self.summaries += [notice.alert.summary for notice in notices]

    heard, clock = Heard(), Clock()
    notifier = Notifier("hook", heard, clock)
    for summary in ("one", "two"):
        notifier.enqueue_notice(
            Notice(Alert("Open", (("topic", summary),), "firing", at(0), at(0), None, summary), "hook")
        )
    notifier.stop()
    notifier.start()
    notifier.join(60)
    assert heard.summaries == ["one", "two"]
    assert notifier.settled.qsize() == 2


def test_alert_fires_notifies_once_and_resolves(lake, receiver):
    clock = Clock(50)
    with evaluating(lake, receiver, clock) as evaluator:
        assert evaluator.round() == []
        clock.seconds = 101
        assert [alert.status for alert in evaluator.round()] == ["firing"]
        assert evaluator.round() == []
        write(lake, outcome("d1", "applied", 105))
        clock.seconds = 110
        assert [alert.status for alert in evaluator.round()] == ["resolved"]
        wait_until(lambda: settled(evaluator, lake) == ["told", "told"])
    assert told(receiver) == [("firing", f"{ORDERS} 101"), ("resolved", f"{ORDERS} 101")]
    rows = recorded_alerts(lake)
    assert sorted(row["status"] for row in rows) == ["due", "due", "firing", "resolved", "told", "told"]
    assert {row["subject"] for row in rows} == {ORDERS}
    assert live_alerts(rows) == []


def test_next_process_sends_due_notices_once(lake, receiver):
    clock = Clock(101)
    with evaluating(lake, receiver, clock, start=False) as evaluator:
        evaluator.round()
    with evaluating(lake, receiver, clock) as evaluator:
        assert evaluator.round() == []
        wait_until(lambda: settled(evaluator, lake) == ["told"])
    with evaluating(lake, receiver, clock) as evaluator:
        evaluator.round()
    assert told(receiver) == [("firing", f"{ORDERS} 101")]


def test_unrecorded_notice_resent_with_same_id(lake, receiver):
    clock = Clock(101)
    with evaluating(lake, receiver, clock) as evaluator:
        evaluator.round()
        wait_until(lambda: receiver.came)
    with evaluating(lake, receiver, clock):
        wait_until(lambda: len(receiver.came) == 2)
    assert len({headers["webhook-id"] for _, headers, _ in receiver.came}) == 1


@pytest.mark.parametrize(("minutes", "is_repeated"), [(14, True), (16, False)])
def test_next_process_repeats_lately_resolved_alert(lake, receiver, minutes, is_repeated):
    """Alertmanager learns for 15 minutes from when it was told, however late after the end that was."""

    class Repeating:
        batch, resend_seconds = 1, 60.0

    clock = Clock(101)
    with evaluating(lake, receiver, clock) as evaluator:
        evaluator.round()
        write(lake, outcome("d1", "applied", 105))
        clock.seconds = 110
        evaluator.round()
        clock.seconds = 3600
        wait_until(lambda: settled(evaluator, lake) == ["told", "told"])
    clock.seconds += 60 * minutes
    rules = rules_of({"rules": [OPEN], "destinations": {"hook": {"kind": "log"}}}, "f")
    notifier = Notifier("hook", Repeating(), clock)
    Evaluator(lake, rules, {"hook": notifier}, clock)
    assert [notice.alert.status for notice in notifier._due_repeats(0.0)] == ["resolved"] * is_repeated


@pytest.mark.parametrize("is_committed", [True, False])
def test_failed_commit_makes_no_second_alert(lake, receiver, monkeypatch, is_committed):
    """The commit reports a fault, made or not; the next round is a second later, and would begin the alert then."""
    clock, append = Clock(101), OpenTable.append

    def fails_once(table, rows, *more, **others):
        if len(rows) and not failed:
            failed.append(True)
            if is_committed:
                append(table, rows, *more, **others)
            raise OSError("the connection was reset")
        append(table, rows, *more, **others)

    failed = []
    monkeypatch.setattr(OpenTable, "append", fails_once)
    with evaluating(lake, receiver, clock) as evaluator:
        with pytest.raises(OSError, match="reset"):
            evaluator.round()
        clock.seconds += 1
        assert evaluator.round() == []
        assert [alert.since for alert in evaluator.alerts] == [at(101)]
        wait_until(lambda: settled(evaluator, lake) == ["told"])
    rows = recorded_alerts(lake)
    assert sorted(row["status"] for row in rows) == ["due", "firing", "told"]
    assert len({row["alert_id"] for row in rows}) == 1
    assert told(receiver) == [("firing", f"{ORDERS} 101")]


@pytest.mark.parametrize("restarted", [701, 820])
def test_pending_goes_on_after_a_restart(lake, receiver, restarted):
    slow = {**OPEN, "for": "10m"}
    with evaluating(lake, receiver, Clock(101), slow) as evaluator:
        assert [alert.status for alert in evaluator.round()] == ["pending"]
    with evaluating(lake, receiver, Clock(401), slow) as evaluator:
        assert evaluator.round() == []
    with evaluating(lake, receiver, Clock(restarted), slow) as evaluator:
        assert [(alert.status, alert.since) for alert in evaluator.round()] == [("firing", at(101))]


def test_late_second_round_fires_what_is_pending(lake, receiver):
    """Only the first round of a process comes after a pause; a later one is slow, as with a lake out of reach."""
    clock = Clock(101)
    with evaluating(lake, receiver, clock, {**OPEN, "for": "10m"}) as evaluator:
        evaluator.round()
        clock.seconds += 3_600
        assert [(alert.status, alert.since) for alert in evaluator.round()] == [("firing", at(101))]


@pytest.fixture(params=["alerts.yaml", "story-alerts.yaml"])
def outages(request):
    """The rules that ship about a job that does nothing."""
    rules = yaml.safe_load(SHIPPED.with_name(request.param).read_text())["rules"]
    return [{**rule, "destinations": None} for rule in rules if rule["name"] in ("NoEvaluation", "InputStale")]


def test_no_alert_about_hours_of_pause(lake, receiver, outages):
    clock = Clock(100)
    with evaluating(lake, receiver, clock, *outages) as evaluator:
        assert {alert.status for alert in evaluator.round()} == {"pending"}
    clock.seconds = 5 * 3600
    with evaluating(lake, receiver, clock, *outages) as evaluator:
        evaluator.round()
        assert [alert.status for alert in evaluator.alerts] == ["pending"] * 2
        clock.seconds += 119
        assert evaluator.round() == []
        write(lake, batch(2, clock.seconds))
        clock.seconds += 1
        assert [alert.status for alert in evaluator.round()] == ["inactive"] * 2
    assert "firing" not in {row["status"] for row in recorded_alerts(lake)}


def test_job_that_does_not_come_back_alerts(lake, receiver, outages):
    clock = Clock(5 * 3600)
    with evaluating(lake, receiver, clock, *outages) as evaluator:
        evaluator.round()
        clock.seconds += 120
        assert [alert.status for alert in evaluator.round()] == ["firing"] * 2


def test_refusing_receiver_notified_on_recovery(lake, receiver):
    receiver.status = 500
    with evaluating(lake, receiver, Clock(101)) as evaluator:
        evaluator.round()
        wait_until(lambda: len(receiver.came) >= 3)
        receiver.status = 200
        wait_until(lambda: settled(evaluator, lake) == ["told"])
    assert len({headers["webhook-id"] for _, headers, _ in receiver.came}) == 1


def test_failed_commit_loses_no_delivery(lake, receiver, monkeypatch):
    """What became of a notice is recorded once the lake can be written again; else it would be sent again."""

    def fails(*_, **__):
        raise OSError("the disk is full")

    with evaluating(lake, receiver, Clock(101)) as evaluator:
        evaluator.round()
        wait_until(lambda: not evaluator._notifiers["hook"].settled.empty())
        monkeypatch.setattr(OpenTable, "append", fails)
        with pytest.raises(OSError, match="full"):
            evaluator.settle()
        monkeypatch.undo()
        assert settled(evaluator, lake) == ["told"]


def test_undelivered_notice_dropped_after_a_day(lake, receiver):
    receiver.status, clock = 500, Clock(101)
    with evaluating(lake, receiver, clock) as evaluator:
        evaluator.round()
        wait_until(lambda: receiver.came)
        clock.seconds += 86_401
        wait_until(lambda: settled(evaluator, lake) == ["untold"])
    [row] = [row for row in recorded_alerts(lake) if row["status"] == "untold"]
    assert "it answers 500" in row["error"]
    assert due_notices(recorded_alerts(lake)) == []


def test_rejected_notice_is_not_due_again(lake, receiver):
    receiver.status = 400
    with evaluating(lake, receiver, Clock(101)) as evaluator:
        evaluator.round()
        assert len(due_notices(recorded_alerts(lake))) == 1
        wait_until(lambda: not evaluator._notifiers["hook"].settled.empty())
        evaluator.settle()
    assert {row["status"] for row in recorded_alerts(lake) if row["destination"]} == {"due", "rejected"}
    assert due_notices(recorded_alerts(lake)) == []


def test_second_evaluator_takes_over(lake, receiver):
    with evaluating(lake, receiver, Clock(101)) as first, evaluating(lake, receiver, Clock(101)) as second:
        assert second.round()
        with pytest.raises(LeaseLost, match="another evaluator of alerts"):
            first.round()


def test_failing_rule_keeps_alerts_and_alerts(lake, receiver):
    """A rule that cannot be evaluated keeps its alerts and is an alert of its own."""
    clock = Clock(101)
    with evaluating(lake, receiver, clock) as evaluator:
        evaluator.round()
    broken = {**OPEN, "sql": "SELECT nothing FROM decisions"}
    with evaluating(lake, receiver, clock, broken) as evaluator:
        [pending] = evaluator.round()
        assert (pending.rule, pending.labels, pending.status) == ("AlertRuleFails", (("rule", "Open"),), "pending")
        clock.seconds += 120
        assert [alert.status for alert in evaluator.round()] == ["firing"]
        assert {alert.rule for alert in evaluator.alerts} == {"Open", "AlertRuleFails"}
    with evaluating(lake, receiver, clock) as evaluator:
        assert [(alert.rule, alert.status) for alert in evaluator.round()] == [("AlertRuleFails", "resolved")]
        assert [alert.rule for alert in evaluator.alerts] == ["Open"]


def test_rows_over_the_limit_are_read_to_be_counted(lake):
    few = {"name": "R", "sql": "SELECT * FROM (VALUES ('a'), ('b'), ('c')) AS t(topic)", "summary": "s"}
    matches = Asking(lake, at(0)).matches(Rule.model_validate({**few, "max_alerts": 1}))
    assert [match.labels for match in matches] == [(("topic", name),) for name in "abc"]


def test_no_more_rows_are_read_than_are_counted(lake):
    many = {"name": "R", "sql": "SELECT unnest(range(5000)) AS topic", "summary": "s", "max_alerts": 1}
    assert len(Asking(lake, at(0)).matches(Rule.model_validate(many))) == 1_010


def test_alerts_of_removed_rule_resolved(lake, receiver):
    clock = Clock(101)
    with evaluating(lake, receiver, clock) as evaluator:
        evaluator.round()
    with evaluating(lake, receiver, clock, {**OPEN, "name": "Other"}) as evaluator:
        assert [(alert.rule, alert.status) for alert in evaluator.round()] == [
            ("Other", "firing"),
            ("Open", "resolved"),
        ]
        wait_until(lambda: ("resolved", f"{ORDERS} 101") in told(receiver))


def test_rehearsal_shows_past_pending_and_firing(lake):
    write(lake, outcome("d1", "applied", 400))
    rule = rules_of({"rules": [{**OPEN, "for": "1m"}]}, "f").rules[0]

    def said(seconds):
        return [(alert.status, alert.value) for alert in rehearse(lake, rule, 15, at(seconds))]

    assert [said(seconds) for seconds in (100, 130, 161, 399, 400)] == [
        [],
        [("pending", 130)],
        [("firing", 161)],
        [("firing", 399)],
        [],
    ]


def shipped_that_speak(lake, seconds, among=()):
    """The rules that ship, or some of them, that match something."""
    asking = Asking(lake, at(seconds))
    rules = [rule for rule in read_rules(SHIPPED).rules if not among or rule.name in among]
    return {rule.name for rule in rules if asking.matches(rule)}


def test_shipped_rules_detect_stuck_parts(lake):
    """The rules that ship detect a stuck job, executor or topic."""
    write(
        lake,
        *[dead_letter("malformed", 100 + number) for number in range(12)],
        hold(10, "max-segments"),
        decision(2, 2, action="merge"),
        decision(4, 3),
        *[outcome(f"d{number}", status, number + 5.0) for number in (2, 3) for status in ("intent", "applied")],
        batch(9, 150, committed_at=at(200)),
    )
    write(lake, decision(1, 4, subject=HOT), hold(300, "unsplittable", subject=HOT))
    assert shipped_that_speak(lake, 50) == set()
    assert shipped_that_speak(lake, 210) == {"DeadLetters", "AppliedNotObserved", "LedgerWriteLag", "OpenDecision"}
    assert shipped_that_speak(lake, 2000) == {
        "NoEvaluation",
        "InputStale",
        "OpenDecision",
        "OneHotKey",
        "CapBinding",
        "AppliedNotObserved",
        "OutcomeNotHeard",
    }
    assert shipped_that_speak(lake, 5000, {"StuckDecision"})
    still = {"NoEvaluation", "CapBinding", "OpenDecision"}
    assert shipped_that_speak(lake, 90 * 86_400, still) == still


def test_shipped_rules_speak_after_documented_times(lake):
    """The times are those of docs/alerts.md, from the decision at 0, the batch a quarter later, and the end at 10."""
    write(lake, hold(0, "max-segments", subject="topic://acme/shop/capped"), decision(5, 2, subject=HOT))
    write(lake, *[outcome("d2", status, 10, subject=HOT) for status in ("intent", "applied")])
    rules = read_rules(SHIPPED)
    for name, seconds in {
        "NoEvaluation": 210.25,
        "InputStale": 180.25,
        "OpenDecision": 300,
        "StuckDecision": 3600 + 300 + 600 + 120,
        "OutcomeNotHeard": 610,
        "AppliedNotObserved": 190,
        "CapBinding": 1800,
    }.items():
        rule = rules.rule(name)
        asked = [bool(Asking(lake, at(seconds + more - rule.for_)).matches(rule)) for more in (0, 1)]
        assert asked == [False, True], name


def test_applied_decision_missing_until_layout(lake):
    seen, missed = "topic://acme/shop/seen", "topic://acme/shop/missed"
    layout = layout_json((0, 0, 0xFFFF))
    write(
        lake,
        *[decision(20, number, subject=topic) for number, topic in ((2, seen), (3, missed))],
        *[outcome(f"d{number}", "intent", 30, subject=topic) for number, topic in ((2, seen), (3, missed))],
        *[outcome(f"d{number}", "applied", 32, subject=topic) for number, topic in ((2, seen), (3, missed))],
        *[layout_event(layout, seconds, "split", seen) for seconds in (10, 30)],
        *[layout_event(layout, seconds, "split", missed) for seconds in (10, 29)],
    )
    found = Asking(lake, at(200)).matches(read_rules(SHIPPED).rule("AppliedNotObserved"))
    assert [(dict(one.labels)["topic"], one.value) for one in found] == [(missed, 168)]


def test_shipped_rules_detect_undone_actions(lake):
    steps = [("split", "[0]", "[1,2]"), ("merge", "[1,2]", "[3]"), ("split", "[3]", "[4,5]")]
    for number, (action, segments, children) in enumerate(steps, 2):
        write(
            lake,
            decision(number * 60, number, action=action, arguments=f'{{"segments":{segments}}}'),
            outcome(f"d{number}", "applied", number * 60 + 1, seen=f'{{"children":{children}}}'),
        )
    spoken = [shipped_that_speak(lake, seconds, {"Thrash"}) for seconds in (190, 250, 250 + 7200)]
    assert spoken == [set(), {"Thrash"}, set()]


def test_shipped_rules_report_held_executor(lake):
    log = BrakeLog(lake)
    log.write(lambda _: [SafeguardAct("pause", "acme/shop", "release", "eva", at(100), until=at(500))])
    log.write(lambda _: [SafeguardAct("stop", "*", "failures", "executor", at(200))])
    log.write(lambda _: [SafeguardAct("resume", "*", "mended", "eva", at(300))])
    rule = read_rules(SHIPPED).rule("BrakeOn")
    found = [
        {dict(one.labels)["subject"] for one in Asking(lake, at(seconds)).matches(rule)}
        for seconds in (50, 150, 250, 350, 500)
    ]
    assert found == [set(), {"acme/shop"}, {"acme/shop", "*"}, {"acme/shop"}, set()]


def test_shipped_rules_detect_unwanted_scaling(lake):
    """The rules that ship detect that the cluster's own scaler acts where we did not decide."""
    layout = layout_json((0, 0, 0xFFFF))
    ours = [decision(1000 * number, number + 1) for number in (1, 2)]
    theirs = [layout_event(layout, 1000 * number + 60, "split") for number in (1, 2)]
    write(
        lake, *ours, *theirs, *[outcome(f"d{number}", "observed", 1000 * number, mode="observe") for number in (1, 2)]
    )
    write(lake, *[layout_event(layout, 2100 + number, "merge") for number in (1, 2)])
    assert not shipped_that_speak(lake, 2200, {"ShadowDisagreement"})
    write(lake, layout_event(layout, 2210, "split", "topic://acme/shop/other"))
    assert shipped_that_speak(lake, 2220, {"ShadowDisagreement"})
