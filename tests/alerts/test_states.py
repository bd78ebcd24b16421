"""Alerts from one evaluation to the next."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.alerts.rules import Rule
from anabranch.alerts.states import Alert, RuleMatch, advance_rule, labels_of

pytestmark = pytest.mark.unit

T0 = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def rule(**more):
    return Rule.model_validate({"name": "R", "sql": "SELECT 1", "summary": "s", **more})


def row(name="a", value=1.0):
    return RuleMatch((("topic", name),), value, f"{name} is {value}")


def later(seconds):
    return T0 + timedelta(seconds=seconds)


def live(alerts, changed):
    """What is known after the changes."""
    known = {alert.labels: alert for alert in alerts} | {alert.labels: alert for alert in changed}
    return [alert for alert in known.values() if alert.status in ("pending", "firing")]


def test_without_for_a_row_fires_at_once():
    [alert] = advance_rule(rule(), [], [row()], T0)
    assert (alert.status, alert.since, alert.value) == ("firing", T0, 1.0)


def test_pending_turns_firing_exactly_on_time():
    [pending] = advance_rule(rule(**{"for": "2m"}), [], [row()], T0)
    assert pending.status == "pending"
    assert advance_rule(rule(**{"for": "2m"}), [pending], [row()], later(119.999)) == []
    [firing] = advance_rule(rule(**{"for": "2m"}), [pending], [row(value=7.0)], later(120))
    assert (firing.status, firing.since, firing.value, firing.alert_id) == ("firing", T0, 7.0, pending.alert_id)


def test_firing_alert_silent_while_row_stays():
    alerts = advance_rule(rule(), [], [row()], T0)
    assert advance_rule(rule(), alerts, [row(value=9.0)], later(60)) == []


def test_row_resolves_and_returns_as_new_alert():
    [first] = advance_rule(rule(), [], [row()], T0)
    [resolved] = advance_rule(rule(), [first], [], later(60))
    assert (resolved.status, resolved.alert_id) == ("resolved", first.alert_id)
    [again] = advance_rule(rule(), [], [row()], later(120))
    assert again.alert_id != first.alert_id


def test_missing_pending_row_restarts_wait():
    slow = rule(**{"for": "1m"})
    [pending] = advance_rule(slow, [], [row()], T0)
    [inactive] = advance_rule(slow, [pending], [], later(30))
    assert inactive.status == "inactive"
    [again] = advance_rule(slow, [], [row()], later(40))
    assert (again.status, again.since) == ("pending", later(40))


def test_clock_set_back_fires_nothing_early():
    """No alert is resolved before it fired, either."""
    slow = rule(**{"for": "1m"})
    [pending] = advance_rule(slow, [], [row()], T0)
    assert advance_rule(slow, [pending], [row()], later(-600)) == []
    [firing] = advance_rule(slow, [pending], [row()], later(60))
    assert advance_rule(slow, [firing], [], later(-600))[0].at == later(60)


def test_rows_over_limit_become_one_alert():
    """The alert counts the surplus rows; alerts that are known stay."""
    few = rule(max_alerts=2)
    known = live([], advance_rule(few, [], [row("z")], T0))
    alerts = live(known, advance_rule(few, known, [row(name) for name in "abcz"], later(1)))
    assert {alert.labels[0] for alert in alerts} == {("topic", "z"), ("topic", "a"), ("overflow", "true")}
    assert [alert.value for alert in alerts if alert.labels == (("overflow", "true"),)] == [2.0]


@given(st.lists(st.sets(st.sampled_from("abc")), max_size=30), st.integers(0, 4))
def test_alert_fires_after_row_stays_whole_wait(rounds, minutes):
    slow = rule(**{"for": f"{minutes}m"})
    known: list[Alert] = []
    streak = dict.fromkeys("abc", 0)
    for number, names in enumerate(rounds):
        known = live(known, advance_rule(slow, known, [row(name) for name in names], later(60 * number)))
        streak = {name: streak[name] + 1 if name in names else 0 for name in streak}
        firing = {alert.labels[0][1] for alert in known if alert.status == "firing"}
        assert firing == {name for name, rounds_there in streak.items() if rounds_there > minutes}
        assert {alert.labels[0][1] for alert in known} == names


def test_thresholds_are_strict_and_ignore_null():
    assert [rule(above=3).is_beyond(value) for value in (3, 3.1, None, float("nan"))] == [False, True, False, False]
    assert [rule(below=3).is_beyond(value) for value in (3, 2.9, None, float("nan"))] == [False, True, False, False]
    assert rule().is_beyond(None)


def test_labels_are_bounded_and_leave_out_value_and_nulls():
    labels = labels_of({"value": 1.0, "topic": "t" * 600, "segment": 3, "reason": None})
    assert labels == (("segment", "3"), ("topic", "t" * 500))
