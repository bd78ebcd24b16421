"""The table `alerts`: what every alert came to, and which notices are due, told or given up.

Stage: under `ledger.alerts.evaluator`. One process writes, under a lease. A change of an alert and the notices that are
due for it are one commit, so a crash loses no notice; the notice is sent after it, and `told` recorded after that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from lake.lease import LeasedTable
from lake.tables import read_columns
from ledger.alerts.rules import Rule
from ledger.alerts.states import Alert, Labels
from schemas.tables import ALERTS, AlertRow

LEASE = "anabranch-alerts"
"""Names the lease in the table's log."""
_IDENTITY = ("alert_id", "status", "destination", "notice")
_AGE = {"pending": 0, "firing": 1, "inactive": 2, "resolved": 2}
"""An alert only ever goes to an older status: so rows need no order, and no clock."""


@dataclass(frozen=True)
class Notice:
    """One alert that fires or is resolved, for one destination."""

    alert: Alert
    destination: str

    @property
    def notice_id(self) -> str:
        """The same whenever it is sent: a receiver that saw it before may drop it."""
        return f"{self.alert.alert_id}-{self.alert.status}"


class AlertRecord:
    """The alerts of a lake, for the one process that evaluates. One thread uses it."""

    def __init__(self, lake: str) -> None:
        """Takes the lease, and reads what is on record. Raises `LeaseLost`, or what Delta raises."""
        self._table = LeasedTable(
            lake, ALERTS, LEASE, identity=_IDENTITY, holder="evaluator of alerts", work="evaluates alerts"
        )
        rows = self._table.read(list(AlertRow.model_fields)).to_pylist()
        self.alerts: dict[tuple[str, Labels], Alert] = {alert.key: alert for alert in live_alerts(rows)}
        """Those that are pending or firing."""
        self.due = due_notices(rows)
        """Notices that are neither told nor given up, the oldest first; as of the start."""

    def check(self) -> None:
        """Raises `LeaseLost` when another process has taken over."""
        self._table.check()

    def change(self, changed: Iterable[tuple[Alert, Rule | None, Sequence[str]]], now: datetime) -> list[Notice]:
        """Records alerts that came to another status, each with its rule and the destinations that hear of it; answers
        the notices. Raises `LeaseLost`, or what Delta raises: then nothing was taken in, and it can be given again."""
        rows, notices, changed = list[AlertRow](), list[Notice](), list(changed)
        for alert, rule, destinations in changed:
            rows.append(_row(alert, rule, alert.status, alert.at))
            if alert.status in ("firing", "resolved"):
                told = [Notice(alert, name) for name in destinations]
                rows += [_row(alert, rule, "due", now, notice) for notice in told]
                notices += told
        self._table.append(rows)
        for alert, _, _ in changed:
            if alert.status in ("pending", "firing"):
                self.alerts[alert.key] = alert
            else:
                self.alerts.pop(alert.key, None)
        return notices

    def settle(self, settled: Sequence[tuple[Notice, Literal["told", "untold"], str | None]], now: datetime) -> None:
        """Records what became of notices. Raises as `change`."""
        rows = [_row(notice.alert, None, status, now, notice, error) for notice, status, error in settled]
        self._table.append(rows)


def recorded_alerts(lake: str) -> list[dict[str, Any]]:
    """All rows of the table, the oldest first; none when there is none. Raises `DeltaError` or `OSError`."""
    rows: list[dict[str, Any]] = (
        read_columns(lake, ALERTS, list(AlertRow.model_fields)).sort_by([("at", "ascending")]).to_pylist()
    )
    return rows


def live_alerts(rows: Iterable[Mapping[str, Any]]) -> list[Alert]:
    """The alerts that are pending or firing, as of rows in any order; those that fire first."""
    newest: dict[str, Alert] = {}
    for row in rows:
        alert = _alert(row) if row["destination"] is None else None
        if alert is not None and _AGE[alert.status] >= _AGE[newest.get(row["alert_id"], alert).status]:
            newest[row["alert_id"]] = alert
    live = [alert for alert in newest.values() if alert.status in ("pending", "firing")]
    return sorted(live, key=lambda alert: (alert.status != "firing", alert.since, alert.key))


def due_notices(rows: Iterable[Mapping[str, Any]]) -> list[Notice]:
    """Notices that are neither told nor given up, as of rows in any order; the oldest first."""
    due: dict[tuple[str, str, str], Notice] = {}
    settled = set[tuple[str, str, str]]()
    for row in rows:
        alert = _alert(row) if row["destination"] is not None else None
        if alert is not None:
            key = row["alert_id"], row["notice"], row["destination"]
            if row["status"] == "due":
                due[key] = Notice(alert, row["destination"])
            else:
                settled.add(key)
    return sorted((notice for key, notice in due.items() if key not in settled), key=lambda notice: notice.alert.at)


def _alert(row: Mapping[str, Any]) -> Alert | None:
    """The alert of a row; None: another release wrote it."""
    status = row["notice"] or row["status"]
    if row["since"] is None or status not in _AGE:
        return None
    labels = tuple(sorted(json.loads(row["labels"]).items()))
    return Alert(row["alert"], labels, status, row["since"], row["at"], row["value"], row["summary"])


def _row(
    alert: Alert, rule: Rule | None, status: str, at: datetime, notice: Notice | None = None, error: str | None = None
) -> AlertRow:  # fmt: skip
    labels = dict(alert.labels)
    return AlertRow(
        alert=alert.rule, subject=labels.get("topic") or labels.get("subject") or "*", status=status, at=at,
        summary=alert.summary, labels=json.dumps(labels), day=at.date(), alert_id=alert.alert_id, since=alert.since,
        value=alert.value, severity=None if rule is None else rule.severity,
        destination=None if notice is None else notice.destination,
        notice=None if notice is None else alert.status, error=error,
    )  # fmt: skip
