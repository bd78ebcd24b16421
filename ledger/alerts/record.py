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
from lake.tail import StoredRow
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


def standing_alerts(rows: Iterable[StoredRow]) -> list[StoredRow]:
    """Return the alerts that are pending or firing, the newest first. `rows`: in the order of their commits."""
    newest: dict[str, StoredRow] = {}
    for row in rows:
        if row["notice"] is None:
            newest[row["alert_id"] or json.dumps([row["alert"], row["labels"]])] = row
    standing = [row for row in newest.values() if row["status"] in ("pending", "firing")]
    return sorted(standing, key=lambda row: row["at"], reverse=True)


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
        """Notices that are neither told, rejected nor given up, the oldest first; as of the start."""
        self.resolved = resolved_notices(rows)
        """Notices of resolved alerts with when they were told; as of the start."""
        self._unwritten: tuple[list[AlertRow], list[Alert], list[Notice]] | None = None
        """A change whose commit failed, or seemed to."""

    def check(self) -> None:
        """Raises `LeaseLost` when another process has taken over."""
        self._table.check()

    def change(self, changed: Iterable[tuple[Alert, Rule | None, Sequence[str]]], now: datetime) -> list[Notice]:
        """Record alerts that came to another status, each with its rule and the destinations that hear of it; return
        the notices. Raises `LeaseLost`, or what Delta raises: then it stays to be finished (`finish`)."""
        if self._unwritten is not None:
            raise RuntimeError("a change waits to be finished: another one would not know of it")
        rows, notices, alerts = list[AlertRow](), list[Notice](), list[Alert]()
        for alert, rule, destinations in changed:
            alerts.append(alert)
            rows.append(_row(alert, rule, alert.status, alert.at))
            if alert.status in ("firing", "resolved"):
                told = [Notice(alert, name) for name in destinations]
                rows += [_row(alert, rule, "due", now, notice) for notice in told]
                notices += told
        self._unwritten = rows, alerts, notices
        return self.finish()

    def finish(self) -> list[Notice]:
        """Commit a change again whose commit failed, and return its notices; none when there is no such change.

        A commit may have been made although it reported a fault. The same rows given again are found in the table, so
        no alert begins twice; worked out anew they would be of another beginning, and so of another alert. Raises as
        `change`.
        """
        if self._unwritten is None:
            return []
        rows, alerts, notices = self._unwritten
        self._table.append(rows)
        self._unwritten = None
        for alert in alerts:
            if alert.status in ("pending", "firing"):
                self.alerts[alert.key] = alert
            else:
                self.alerts.pop(alert.key, None)
        return notices

    def settle(
        self, settled: Sequence[tuple[Notice, Literal["told", "rejected", "untold"], str | None]], now: datetime
    ) -> None:  # fmt: skip
        """Record what became of notices; a change has to be finished first. Raises as `change`."""
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
    """Notices that are neither told, rejected nor given up, as of rows in any order; the oldest first."""
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


def resolved_notices(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Notice, datetime]]:
    """Notices of resolved alerts that were told, with when that was, as of rows in any order; the oldest first."""
    told = [
        (Notice(alert, row["destination"]), row["at"]) for row in rows
        if row["status"] == "told" and row["notice"] == "resolved" and (alert := _alert(row)) is not None
    ]  # fmt: skip
    return sorted(told, key=lambda each: each[1])


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
