"""Delivery to destinations that reject, ask for time, and forget: real HTTP, and a real Alertmanager that is killed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.alerts.notifiers import Notifier
from anabranch.alerts.posting import DeliveryFailed, seconds_of, sender_of
from anabranch.alerts.record import Notice
from anabranch.alerts.rules import rules_of
from anabranch.alerts.states import Alert
from tests.alerts.alertmanager import RealAlertmanager, ensure_alertmanager
from tests.alerts.receiver import receiving
from tests.waiting import wait_until

pytestmark = pytest.mark.process

PROJECT = Path(__file__).parents[2]
BAD = "bad"


def utc_now():
    return datetime.now(timezone.utc)


def notice(topic, status="firing", label="topic", since=None):
    now = utc_now()
    return Notice(Alert("Hot", ((label, topic),), status, since or now, now, 1.0, f"{topic} is hot"), "d")


def sender(kind, url):
    rules = rules_of(
        {
            "rules": [{"name": "Hot", "sql": "SELECT 1", "summary": "s"}],
            "destinations": {"d": {"kind": kind, "url": url, "allow_local": True}},
        },
        "f",
    )
    return sender_of("d", rules.destinations["d"], rules, {})


@contextmanager
def delivering(notifier):
    notifier.start()
    try:
        yield notifier
    finally:
        notifier.stop()
        notifier.join(60)


def settled(notifier, found):
    while not notifier.settled.empty():
        delivered, status, fault = notifier.settled.get_nowait()
        found[dict(delivered.alert.labels).popitem()[1]] = status, fault
    return found


def topics(body):
    alerts = body if isinstance(body, list) else body["alerts"]
    return [alert["labels"]["topic"] for alert in alerts]


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


@pytest.mark.parametrize(
    ("kind", "status"), [*(("webhook", status) for status in (400, 404, 410, 413, 422)), ("alertmanager", 400)]
)
def test_rejected_notice_fails_alone(receiver, kind, status):
    receiver.answers = lambda body: (status if BAD in topics(body) else 200, {})
    notifier, found = Notifier("d", sender(kind, receiver.url), utc_now), {}
    names = ["a", BAD, "b", "c"]
    for name in names:
        notifier.enqueue_notice(notice(name))
    with delivering(notifier):
        wait_until(lambda: len(settled(notifier, found)) == len(names))
    assert {name: status for name, (status, _) in found.items()} == {
        "a": "told",
        BAD: "rejected",
        "b": "told",
        "c": "told",
    }
    assert f"it answers {status}" in found[BAD][1]
    # All others are sent together again.
    assert {dict(labels)["topic"] for _, labels in notifier._suspects} <= {BAD}


def test_failing_notice_steps_aside(receiver):
    receiver.answers = lambda body: (500 if BAD in topics(body) else 200, {})
    notifier, found = Notifier("d", sender("webhook", receiver.url), utc_now, max_delay=0.05), {}
    for one in (notice(BAD), notice(BAD, "resolved"), notice("a"), notice("b")):
        notifier.enqueue_notice(one)
    with delivering(notifier):
        wait_until(lambda: set(settled(notifier, found)) == {"a", "b"})
        wait_until(lambda: notifier.waiting == 2)
        receiver.answers = lambda body: (200, {})
        wait_until(lambda: settled(notifier, found).get(BAD) is not None and notifier.settled.empty())
    of_bad = [body["status"] for body in receiver.bodies if BAD in topics(body)]
    assert of_bad[-2:] == ["firing", "resolved"]
    assert set(of_bad[:-1]) == {"firing"}


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(receiver, form):
    first = []

    def answers(_):
        first.append(time.monotonic())
        # A date has whole seconds, so that it is two to three seconds away.
        asked = "2" if form == "seconds" else format_datetime(utc_now() + timedelta(seconds=3), usegmt=True)
        return (429, {"Retry-After": asked}) if len(first) == 1 else (200, {})

    receiver.answers = answers
    notifier, found = Notifier("d", sender("webhook", receiver.url), utc_now, max_delay=0.01), {}
    notifier.enqueue_notice(notice("a"))
    with delivering(notifier):
        wait_until(lambda: settled(notifier, found), 30)
    assert first[1] - first[0] >= 1.9
    assert len(first) == 2


NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


@pytest.mark.unit
@given(st.integers(-10_000, 10_000_000))
def test_retry_after_date_is_the_time_until_then(seconds):
    assert seconds_of(format_datetime(NOW + timedelta(seconds=seconds), usegmt=True), NOW) == max(0, seconds)


@pytest.mark.unit
@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "Mon, 99 Nov 2026 12:00:00 GMT", "9" * 400])
def test_retry_after_that_says_nothing_is_zero(text):
    assert seconds_of(text, NOW) == 0


@pytest.mark.unit
def test_retry_after_is_bounded():
    class Busy:
        batch, resend_seconds = 1, None

    notifier = Notifier("d", Busy(), utc_now)
    assert notifier._delay(1, DeliveryFailed("busy", 30)) == 30
    assert notifier._delay(1, DeliveryFailed("busy", 86_400)) == 900


@pytest.fixture(scope="module")
def program():
    return ensure_alertmanager(PROJECT / ".cache" / "alertmanager")


@contextmanager
def alertmanager(program, folder, receiver):
    """With the `group_interval` that most have: nobody is notified of a resolved alert for five minutes."""
    manager = RealAlertmanager(program, folder, receiver.url, group_interval="5m")
    manager.start()
    try:
        yield manager
    finally:
        manager.kill()


def heard(receiver, status):
    return [
        alert["labels"]["topic"] for body in receiver.bodies for alert in body["alerts"] if alert["status"] == status
    ]


def test_resolved_alert_outlives_a_kill(program, tmp_path, receiver):
    """Killed between the resolved POST and its notification, a new Alertmanager hears of it again."""
    with alertmanager(program, tmp_path / "am", receiver) as manager:
        repeating = sender("alertmanager", manager.url)
        repeating.resend_seconds = 0.5
        notifier, found = Notifier("d", repeating, utc_now, max_delay=0.2), {}
        with delivering(notifier):
            firing = notice("a")
            notifier.enqueue_notice(firing)
            wait_until(lambda: heard(receiver, "firing") == ["a"], 60)
            notified = time.time()
            wait_until(lambda: manager.remembers(notified), 30)
            notifier.enqueue_notice(notice("a", "resolved", since=firing.alert.since))
            wait_until(lambda: settled(notifier, found).get("a") and notifier.settled.empty() and not manager.alerts())
            manager.kill()
            assert heard(receiver, "resolved") == []
            manager.start()
            wait_until(lambda: heard(receiver, "resolved") == ["a"], 60)


def test_resolved_alert_repeated_for_15_minutes(receiver):
    started = utc_now()
    clock = lambda: started + timedelta(seconds=offset[0])  # noqa: E731
    offset = [0.0]
    repeating = sender("alertmanager", receiver.url)
    repeating.resend_seconds = 0.05
    notifier = Notifier("d", repeating, clock, max_delay=0.05)
    notifier.resume_repeating(notice("old", "resolved"), started - timedelta(minutes=16))
    notifier.resume_repeating(notice("new", "resolved"), started - timedelta(minutes=5))
    notifier.resume_repeating(notice("fires"), started - timedelta(hours=2))
    with delivering(notifier):
        wait_until(lambda: len(receiver.came) >= 3)
        assert {topic for body in receiver.bodies for topic in topics(body)} == {"new", "fires"}
        offset[0] = 601
        wait_until(lambda: topics(receiver.bodies[-1]) == ["fires"])


def test_undelivered_resolution_ends_the_repetition(receiver):
    """After a day without an answer: the receiver forgets the alert, instead of hearing for ever that it fires."""
    started, offset, answers = utc_now(), [0.0], [200]
    receiver.answers = lambda body: (answers[0], {})
    repeating = sender("alertmanager", receiver.url)
    repeating.resend_seconds = 0.05
    notifier, found = Notifier("d", repeating, lambda: started + timedelta(seconds=offset[0]), max_delay=0.02), {}
    firing = notice("a")
    with delivering(notifier):
        notifier.enqueue_notice(firing)
        wait_until(lambda: settled(notifier, found))
        answers[0] = 500
        notifier.enqueue_notice(notice("a", "resolved", since=firing.alert.since))
        wait_until(lambda: notifier.waiting)
        offset[0] = 86_410
        wait_until(lambda: settled(notifier, found)["a"][0] == "untold")
        answers[0], before = 200, len(receiver.bodies)
        notifier.enqueue_notice(notice("b"))
        wait_until(lambda: len([body for body in receiver.bodies[before:] if "b" in topics(body)]) > 2)
    assert [topics(body) for body in receiver.bodies[-2:]] == [["b"], ["b"]]


def test_alert_resolved_during_an_outage_stays_resolved(receiver):
    """Its repetition as firing is due when the resolution comes, and neither gets through."""
    firing, status = notice("a"), [200]
    receiver.answers = lambda body: (status[0], {})
    repeating = sender("alertmanager", receiver.url)
    repeating.resend_seconds = 0.05
    notifier, found = Notifier("d", repeating, utc_now, max_delay=0.02), {}
    with delivering(notifier):
        notifier.enqueue_notice(firing)
        wait_until(lambda: settled(notifier, found).get("a") and len(receiver.bodies) > 2)
        status[0] = 503
        failed = len(receiver.bodies)
        wait_until(lambda: len(receiver.bodies) > failed + 2)
        notifier.enqueue_notice(notice("a", "resolved", since=firing.alert.since))
        wait_until(lambda: notifier.waiting)
        status[0], found = 200, {}
        wait_until(lambda: settled(notifier, found).get("a"))
        resolved = len(receiver.bodies)
        wait_until(lambda: len(receiver.bodies) > resolved + 4)
    ends = [datetime.fromisoformat(body[0]["endsAt"]) for body in receiver.bodies[resolved:]]
    assert all(end < utc_now() for end in ends)


def test_alertmanager_rejecting_one_accepts_others(program, tmp_path, receiver):
    with alertmanager(program, tmp_path / "am", receiver) as manager:
        notifier, found = Notifier("d", sender("alertmanager", manager.url), utc_now), {}
        for one in (notice("a"), notice(BAD, label=""), notice("b")):
            notifier.enqueue_notice(one)
        with delivering(notifier):
            wait_until(lambda: len(settled(notifier, found)) == 3, 30)
        assert {name: status for name, (status, _) in found.items()} == {"a": "told", BAD: "rejected", "b": "told"}
        assert "it answers 400" in found[BAD][1]
        assert {alert["labels"]["topic"] for alert in manager.alerts()} == {"a", "b"}
