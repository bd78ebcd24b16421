"""Transitions of an alert between evaluations: pending, firing, resolved. Pure.

Stage: under `anabranch.alerts.evaluator`. As in Prometheus: a row of a rule's answer is pending until it has been there
for the rule's `for`, then it fires. When the row is gone, the alert is resolved, or inactive if it was only pending.

After a restart alerts are made again from rows of the table `alerts` (`anabranch.alerts.record`): what an `Alert` has
to remember needs a column there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Literal

from anabranch.alerts.rules import Rule

Status = Literal["pending", "firing", "resolved", "inactive"]
Labels = tuple[tuple[str, str], ...]
"""Name and value, by name."""
MAX_LABEL = 500
"""Length of a label's value in characters; longer ones are cut."""
OVERFLOW = "overflow"
"""The label of the one alert that stands for what a rule answered beyond `max_alerts`."""


@dataclass(frozen=True)
class RuleMatch:
    """A row of a rule's answer that is beyond its threshold."""

    labels: Labels
    value: float | None
    summary: str


@dataclass(frozen=True)
class Alert:
    """One alert of a rule, from the first appearance of its row."""

    rule: str
    labels: Labels
    status: Status
    since: datetime
    """First appearance of the row."""
    at: datetime
    """Instant of the change to this status."""
    value: float | None
    summary: str

    @property
    def key(self) -> tuple[str, Labels]:
        """Rule and labels: unique among the alerts that exist at the same time."""
        return self.rule, self.labels

    @property
    def alert_id(self) -> str:
        """Digest of rule, labels and beginning: the same at every evaluation, and in every notice."""
        return sha256(json.dumps([self.rule, self.labels, self.since.isoformat()]).encode()).hexdigest()[:24]


def labels_of(row: Mapping[str, object]) -> Labels:
    """Return the labels of a row: all its columns but `value`, without nulls."""
    return tuple(
        sorted((name, str(value)[:MAX_LABEL]) for name, value in row.items() if name != "value" and value is not None)
    )


def advance_rule(rule: Rule, alerts: Sequence[Alert], matches: Iterable[RuleMatch], now: datetime) -> list[Alert]:
    """Return the alerts of a rule whose status changes when its answer is `matches` at `now`.

    `alerts`: the pending and firing ones. A clock that goes back changes nothing: an alert never becomes younger.
    """
    before = {alert.labels: alert for alert in alerts}
    here = {match.labels: match for match in _bound_matches(rule, matches, before)}
    changed = []
    for labels, match in here.items():
        if (alert := before.get(labels)) is None:
            alert = Alert(rule.name, labels, "pending", now, now, match.value, match.summary)
            if rule.for_ == 0:
                alert = replace(alert, status="firing")
            changed.append(alert)
        elif alert.status == "pending" and now - alert.since >= timedelta(seconds=rule.for_):
            changed.append(replace(alert, status="firing", at=now, value=match.value, summary=match.summary))
    changed += [end_alert(alert, now) for labels, alert in before.items() if labels not in here]
    return changed


def end_alert(alert: Alert, now: datetime) -> Alert:
    """Return the alert after its row has disappeared."""
    return replace(alert, status="resolved" if alert.status == "firing" else "inactive", at=max(now, alert.at))


def _bound_matches(rule: Rule, matches: Iterable[RuleMatch], before: Mapping[Labels, Alert]) -> list[RuleMatch]:
    """Return at most `max_alerts` rows, known ones first, then by labels; one more row counts the others."""
    ordered = sorted(matches, key=lambda match: (match.labels not in before, match.labels))
    more = len(ordered) - rule.max_alerts
    if more <= 0:
        return ordered
    summary = f"{rule.name}: {more} more rows than the {rule.max_alerts} that a rule may raise (max_alerts)"
    return [*ordered[: rule.max_alerts], RuleMatch(((OVERFLOW, "true"),), float(more), summary)]
