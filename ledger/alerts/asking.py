"""Asks the lake what a rule asks, as of an instant: tables cut to what was on record then, through delta-rs' SQL.

Stage: under `ledger.alerts.evaluator`. No JVM. A past instant is answered from rows and their own times, not from
versions of the tables: so it reaches back as far as the rows do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from lake.tables import OpenTable, open_table
from ledger.alerts.rules import Rule
from ledger.alerts.states import Found, labels_of
from schemas.arrow import arrow_schema
from schemas.tables import TABLES, Table

RECORDED_BY = {
    "decisions": "decided_at", "holds": "since", "segment_load": "accepted_at", "events": "accepted_at",
    "dead_letters": "rejected_at", "batches": "committed_at", "outcomes": "at", "brakes": "at", "waits": "at",
    "alerts": "at",
}  # fmt: skip
"""The column by which a row was on record, of each table."""
_INSTANT = 'Timestamp(Microsecond, Some("UTC"))'
_NOW = re.compile(r"\$now\b")


class AskError(Exception):
    """A rule cannot be evaluated; the message says why."""


class Lake:
    """The tables of a lake, kept open. One thread uses it."""

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._open: dict[str, OpenTable] = {}

    def tables(self) -> dict[str, DeltaTable]:
        """Those that are there, as they are now. Raises `DeltaError` or `OSError`."""
        for table in TABLES.values():
            if table.name not in self._open:
                found = open_table(self._lake, table)
                if found is not None:
                    self._open[table.name] = OpenTable(found)
        return {name: one.newest() for name, one in self._open.items()}

    def as_of(self, now: datetime) -> Asking:
        """What was on record at an instant. Raises `AskError`."""
        try:
            return Asking(self.tables(), now)
        except (DeltaError, OSError) as error:
            raise AskError(f"the lake {self._lake} cannot be read: {_first_line(error)}") from error


class Asking:
    """Statements on what was on record at one instant."""

    def __init__(self, tables: Mapping[str, DeltaTable], now: datetime) -> None:
        self._now = f"arrow_cast('{now.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}', '{_INSTANT}')"
        self._builder = QueryBuilder()
        for name, table in TABLES.items():
            there = tables.get(name)
            if there is None:
                self._run(f"CREATE VIEW {name} AS {_nothing(table)}")
            else:
                self._builder.register(f"recorded_{name}", there)
                by = RECORDED_BY[name]
                # The partition too: a condition on it leaves files out.
                self._run(
                    f"CREATE VIEW {name} AS SELECT {_columns(table, there)} FROM recorded_{name} "
                    f"WHERE {by} <= {self._now} AND day <= CAST({self._now} AS DATE)"
                )

    def found(self, rule: Rule) -> list[Found]:
        """The rows that a rule answers, beyond its threshold. Raises `AskError`."""
        rows = self.rows(rule.sql, 10 * rule.max_alerts + 1_000)
        found: dict[Any, Found] = {}
        for row in rows:
            value = _number(row.get("value"))
            if rule.is_beyond(value):
                labels = labels_of(row)
                found[labels] = Found(labels, value, _summary(rule, row, value))
        return list(found.values())

    def rows(self, sql: str, limit: int) -> list[dict[str, Any]]:
        """At most `limit` rows of a statement. Raises `AskError`."""
        if not re.match(r"\s*(SELECT|WITH)\b", sql, re.IGNORECASE):
            raise AskError("a rule's sql is one SELECT (or WITH … SELECT)")
        rows: list[dict[str, Any]] = []
        try:
            for batch in self._builder.execute(_NOW.sub(lambda _: self._now, sql)):
                rows += pa.record_batch(batch).slice(0, limit - len(rows)).to_pylist()
                if len(rows) >= limit:
                    break
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise AskError(_first_line(error)) from error
        return rows

    def _run(self, statement: str) -> None:
        self._builder.execute(statement).read_all()


def _columns(table: Table, stored: DeltaTable) -> str:
    """All columns of a table; null for what an older release did not write."""
    there = {field.name for field in stored.schema().fields}
    return ", ".join(
        f'"{field.name}"' if field.name in there else f"arrow_cast(NULL, '{_type(field.type)}') AS \"{field.name}\""
        for field in arrow_schema(table.row)
    )


def _nothing(table: Table) -> str:
    nulls = (f"arrow_cast(NULL, '{_type(field.type)}') AS \"{field.name}\"" for field in arrow_schema(table.row))
    return f"SELECT {', '.join(nulls)} WHERE false"


def _type(kind: pa.DataType) -> str:
    """A column's type as `arrow_cast` names it."""
    names = {
        pa.string(): "Utf8", pa.int64(): "Int64", pa.float64(): "Float64", pa.bool_(): "Boolean",
        pa.binary(): "Binary", pa.date32(): "Date32", pa.timestamp("us", tz="UTC"): _INSTANT,
    }  # fmt: skip
    return names[kind]


def _number(value: object) -> float | None:
    if value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise AskError(f"the column value is to be a number, and is {str(value)[:50]!r}") from None


def _summary(rule: Rule, row: Mapping[str, Any], value: float | None) -> str:
    """The rule's summary with the row's columns in it; braces that name no column stay as they are."""
    said = {name: "" if cell is None else str(cell)[:500] for name, cell in row.items()} | {
        "value": "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    }
    return re.sub(r"\{(\w+)\}", lambda match: said.get(match[1], match[0]), rule.summary)[:2_000]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:500]
