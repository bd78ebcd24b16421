"""Rehearsal of a rule at an instant: the same evaluations, on the lake as it was on record before.

Stage: under `anabranch serve alerts test`. Nothing is recorded or sent.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from anabranch.alerts.asking import Asking
from anabranch.alerts.rules import Rule
from anabranch.alerts.states import Alert, Labels, advance

MAX_STEPS = 60
"""Evaluations at most before the one that is asked about."""


def rehearse(lake: str, rule: Rule, interval_seconds: float, now: datetime) -> list[Alert]:
    """Return the alerts of a rule that are pending or firing at `now`, with their values, by labels.

    Evaluates from the rule's `for` before `now`, in steps of the interval, or longer ones if they were too many: a row
    that came and went between two steps counts as present. Raises `anabranch.alerts.asking.AskError`.
    """
    step = max(interval_seconds, rule.for_ / MAX_STEPS)
    alerts: dict[Labels, Alert] = {}
    for number in range(int(-(-rule.for_ // step)), -1, -1):
        then = now - timedelta(seconds=min(number * step, rule.for_))
        matches = Asking(lake, then).found(rule)
        for alert in advance(rule, list(alerts.values()), matches, then):
            alerts[alert.labels] = alert
        alerts = {labels: alert for labels, alert in alerts.items() if alert.status in ("pending", "firing")}
    current = {match.labels: match for match in matches}
    return [
        replace(alert, value=current[labels].value, summary=current[labels].summary) if labels in current else alert
        for labels, alert in sorted(alerts.items())
    ]
