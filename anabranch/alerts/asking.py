"""Evaluation of a rule's statement on the lake as of an instant, without a JVM; rehearsal of a rule.

Stage: between `evaluator`, or `anabranch serve alerts test`, and the lake (`anabranch.query.sql`); `states` has an
alert's transitions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from deltalake.exceptions import DeltaError

from anabranch.alerts.rules import NAME, Rule
from anabranch.alerts.states import Alert, Labels, RuleMatch, advance_rule, labels_of
from anabranch.query.sql import LakeSql, SqlError
from lake.tables import OpenTables
from schemas.printable import printable

MAX_STEPS = 60
"""Evaluations at most before the one that is asked about."""


class AskError(Exception):
    """A rule cannot be evaluated; the message says why."""


class LakeUnreadable(AskError):
    """It cannot, because the lake gives no answer."""


class Asking:
    """The lake as it was on record at one instant."""

    def __init__(self, lake: str, now: datetime, tables: OpenTables | None = None) -> None:
        """`tables`: those of earlier instants, which are still open."""
        self._lake, self._sql = lake, LakeSql(lake, now, tables=tables)

    def matches(self, rule: Rule) -> list[RuleMatch]:
        """Return the rows of a rule's answer that are beyond its threshold. Raises `AskError`.

        The threshold is applied to the first 10 x `max_alerts` + 1,000 rows; rows after them are not read, so a rule
        over more rows has to filter in its statement.
        """
        matches: dict[Labels, RuleMatch] = {}
        for row in self._rows(rule.sql, 10 * rule.max_alerts + 1_000):
            value = _read_number(row.get("value"))
            if rule.is_beyond(value):
                labels = labels_of(row)
                matches[labels] = RuleMatch(labels, value, _fill_summary(rule, row, value))
        return list(matches.values())

    def _rows(self, sql: str, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` rows of a statement's answer."""
        rows: list[dict[str, Any]] = []
        try:
            answer = self._sql.ask(sql)
            _check_labels(answer.schema.names)
            for batch in answer:
                rows += batch.slice(0, limit - len(rows)).to_pylist()
                if len(rows) >= limit:
                    break
        except SqlError as error:
            raise AskError(str(error)[:500]) from None
        except (DeltaError, OSError) as error:
            raise LakeUnreadable(f"the lake {self._lake} cannot be read: {str(error)[:500]}") from error
        return rows


def _check_labels(columns: Sequence[str]) -> None:
    """Raise `AskError` for a column that is no label of Alertmanager (`__` is reserved by Prometheus)."""
    for name in columns:
        if not NAME.fullmatch(name) or name.startswith("__"):
            raise AskError(
                f"the column {printable(name)!r} cannot be a label: name it with AS, by letters, digits and _, no "
                "digit and no __ at the beginning"
            )


def _read_number(value: object) -> float | None:
    if value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise AskError(f"the column value is to be a number, and is {str(value)[:50]!r}") from None


def _fill_summary(rule: Rule, row: Mapping[str, Any], value: float | None) -> str:
    """Fill the rule's summary with the row's columns; braces that name no column stay as they are."""
    cells = {name: "" if cell is None else str(cell)[:500] for name, cell in row.items()} | {
        "value": "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    }
    return re.sub(r"\{(\w+)\}", lambda match: cells.get(match[1], match[0]), rule.summary)[:2_000]


def rehearse(lake: str, rule: Rule, interval_seconds: float, now: datetime) -> list[Alert]:
    """Return the alerts of a rule that are pending or firing at `now`, with their values, by labels.

    Evaluates from the rule's `for` before `now`, in steps of the interval, or longer ones if they were too many: a row
    that came and went between two steps counts as present. Nothing is recorded or sent. Raises `AskError`.
    """
    step = max(interval_seconds, rule.for_ / MAX_STEPS)
    alerts: dict[Labels, Alert] = {}
    for number in range(int(-(-rule.for_ // step)), -1, -1):
        then = now - timedelta(seconds=min(number * step, rule.for_))
        matches = Asking(lake, then).matches(rule)
        for alert in advance_rule(rule, list(alerts.values()), matches, then):
            alerts[alert.labels] = alert
        alerts = {labels: alert for labels, alert in alerts.items() if alert.status in ("pending", "firing")}
    current = {match.labels: match for match in matches}
    return [
        replace(alert, value=current[labels].value, summary=current[labels].summary) if labels in current else alert
        for labels, alert in sorted(alerts.items())
    ]
