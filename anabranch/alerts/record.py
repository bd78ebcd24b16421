"""The table `alerts`: the status of every alert, and the notices that are due, told or given up.

Stage: under `anabranch.alerts.evaluator`. One process writes, under a lease. A change of an alert and its notices are
one commit, so a crash loses no notice; the notice is sent after it, and `told` recorded after that.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from anabranch.alerts.rules import Rule
from anabranch.alerts.states import Alert, Labels
from lake.lease import LeasedTable
from lake.tables import read_columns
from lake.tail import StoredRow
from schemas.tables.rows import ALERTS, AlertRow

LEASE = "anabranch-alerts"
"""Names the lease in the table's log."""
_IDENTITY = ("alert_id", "status", "destination", "notice")
_AGE = {"pending": 0, "firing": 1, "inactive": 2, "resolved": 2}
"""An alert only ever goes to an older status: so rows need no order, and no clock."""


@dataclass(frozen=True)
class Notice:
    """Notice of a firing or resolved alert for one destination."""

    alert: Alert
    destination: str

    @property
    def notice_id(self) -> str:
        """Identifier that stays the same when the notice is repeated, so that a receiver may drop duplicates."""
        return f"{self.alert.alert_id}-{self.alert.status}"


def standing_alerts(rows: Iterable[StoredRow]) -> list[StoredRow]:
    """Return the pending and firing alerts, newest first. `rows`: in the order of their commits."""
    newest: dict[str, StoredRow] = {}
    for row in rows:
        if row["notice"] is None:
            newest[row["alert_id"] or json.dumps([row["alert"], row["labels"]])] = row
    unresolved = [row for row in newest.values() if row["status"] in ("pending", "firing")]
    return sorted(unresolved, key=lambda row: row["at"], reverse=True)


class AlertRecord:
    """The alerts of a lake, for the one evaluating process. One thread uses it."""

    def __init__(self, lake: str) -> None:
        """Take the lease and read the record. Raises `LeaseLost`, or what Delta raises."""
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
        """Raise `LeaseLost` when another process has taken over."""
        self._table.check()

    def change(self, changed: Iterable[tuple[Alert, Rule | None, Sequence[str]]], now: datetime) -> list[Notice]:
        """Record alerts whose status changed, each with its rule and destinations; return the notices.

        Raises `LeaseLost`, or what Delta raises: then `finish` has to complete the change.
        """
        if self._unwritten is not None:
            raise RuntimeError("a change waits to be finished: another one would not know of it")
        rows, notices, alerts = list[AlertRow](), list[Notice](), list[Alert]()
        for alert, rule, destinations in changed:
            alerts.append(alert)
            rows.append(_row(alert, rule, alert.status, alert.at))
            if alert.status in ("firing", "resolved"):
                new_notices = [Notice(alert, name) for name in destinations]
                rows += [_row(alert, rule, "due", now, notice) for notice in new_notices]
                notices += new_notices
        self._unwritten = rows, alerts, notices
        return self.finish()

    def finish(self) -> list[Notice]:
        """Repeat the commit of a change that failed, and return its notices; empty if there is none.

        A commit may have succeeded although it reported a fault. Writing the same rows again is detected by the table,
        so no alert begins twice; a recomputed change would have another beginning, and so be another alert. Raises as
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
    ) -> None:
        """Record the end of notices; a change has to be finished first. Raises as `change`."""
        rows = [_row(notice.alert, None, status, now, notice, error) for notice, status, error in settled]
        self._table.append(rows)


def recorded_alerts(lake: str) -> list[dict[str, Any]]:
    """Return all rows of the table, oldest first; empty without a table. Raises `DeltaError` or `OSError`."""
    rows: list[dict[str, Any]] = (
        read_columns(lake, ALERTS, list(AlertRow.model_fields)).sort_by([("at", "ascending")]).to_pylist()
    )
    return rows


def live_alerts(rows: Iterable[Mapping[str, Any]]) -> list[Alert]:
    """Return the pending and firing alerts, firing ones first. `rows`: in any order."""
    newest: dict[str, Alert] = {}
    for row in rows:
        alert = _alert(row) if row["destination"] is None else None
        if alert is not None and _AGE[alert.status] >= _AGE[newest.get(row["alert_id"], alert).status]:
            newest[row["alert_id"]] = alert
    live = [alert for alert in newest.values() if alert.status in ("pending", "firing")]
    return sorted(live, key=lambda alert: (alert.status != "firing", alert.since, alert.key))


def due_notices(rows: Iterable[Mapping[str, Any]]) -> list[Notice]:
    """Return notices that are neither told, rejected nor given up, oldest first. `rows`: in any order."""
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
    """Return delivered notices of resolved alerts with their time, oldest first, of unordered `rows`."""
    resolved = [
        (Notice(alert, row["destination"]), row["at"])
        for row in rows
        if row["status"] == "told" and row["notice"] == "resolved" and (alert := _alert(row)) is not None
    ]
    return sorted(resolved, key=lambda each: each[1])


def _alert(row: Mapping[str, Any]) -> Alert | None:
    """Return the alert of a row; None: another release wrote it."""
    status = row["notice"] or row["status"]
    if row["since"] is None or status not in _AGE:
        return None
    labels = tuple(sorted(json.loads(row["labels"]).items()))
    return Alert(row["alert"], labels, status, row["since"], row["at"], row["value"], row["summary"])


def _row(
    alert: Alert,
    rule: Rule | None,
    status: str,
    instant: datetime,
    notice: Notice | None = None,
    error: str | None = None,
) -> AlertRow:
    labels = dict(alert.labels)
    return AlertRow(
        alert=alert.rule,
        subject=labels.get("topic") or labels.get("subject") or "*",
        status=status,
        at=instant,
        summary=alert.summary,
        labels=json.dumps(labels),
        day=instant.date(),
        alert_id=alert.alert_id,
        since=alert.since,
        value=alert.value,
        severity=None if rule is None else rule.severity,
        destination=None if notice is None else notice.destination,
        notice=None if notice is None else alert.status,
        error=error,
    )
