"""Consistency of the lake's rows, asked in SQL on the tables as they stand at one moment.

Memory: columns of `decisions` and `outcomes`, and of the other tables a day or an hour at a time.
"""

from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.history.check.agreement import HEARD_WITHIN, rules
from anabranch.history.check.findings import Findings
from anabranch.history.check.layouts import unknown_layouts
from anabranch.history.check.numbers import Numbered, gaps
from anabranch.query.sql import LakeSql
from lake.forgotten import forgotten_before
from lake.tables import open_table
from schemas.tables.digests import checksums_of_batches
from schemas.tables.rows import (
    ALERTS,
    BATCHES,
    BRAKES,
    DEAD_LETTERS,
    DECISIONS,
    EVENTS,
    HOLDS,
    OUTCOMES,
    SEGMENT_LOAD,
    TABLES,
    WAITS,
    Table,
)

STUCK_SECONDS = 4500.0
"""Age of an open decision on which no executor acts any more, as the settings are delivered."""
ANNOUNCED_FOR = timedelta(days=1)
"""For so long at least an executor announces an end that the job has not recorded."""
READ_FIRST = (BATCHES, OUTCOMES, WAITS, BRAKES, ALERTS, HOLDS, SEGMENT_LOAD, DEAD_LETTERS, EVENTS, DECISIONS)
"""The order in which the tables are looked up: what refers to rows before those, which are written first."""
KEYS = {
    DECISIONS.name: ("decision_id", "decided_at", "batch_id"),
    HOLDS.name: ("family", "subject", "seq", "since", "batch_id"),
    SEGMENT_LOAD.name: ("kafka_partition", "kafka_offset", "topic", "segment_id", "accepted_at", "batch_id"),
    EVENTS.name: ("kafka_topic", "kafka_partition", "kafka_offset", "subject", "accepted_at", "batch_id"),
    DEAD_LETTERS.name: ("kafka_topic", "kafka_partition", "kafka_offset", "sample", "rejected_at", "batch_id"),
    BATCHES.name: ("generation", "batch_id"),
    OUTCOMES.name: ("decision_id", "status", "attempt", "executor", "at"),
    BRAKES.name: ("number",),
    WAITS.name: ("decision_id", "brake", "reason", "executor", "at"),
    ALERTS.name: ("alert", "subject", "labels", "alert_id", "status", "destination", "notice", "at"),
}
"""Key of each table's rows. With a new checkpoint the same may be decided, and read, again later."""
COUNTED = {
    DECISIONS.name: ("decided_at", "decisions"),
    HOLDS.name: ("since", "holds"),
    EVENTS.name: ("accepted_at", "events"),
    SEGMENT_LOAD.name: ("accepted_at", "samples_accepted"),
    DEAD_LETTERS.name: ("rejected_at", "dead_letters + coalesce(samples_refused, 0)"),
}
"""By table the column with its batch's time, and how many rows the batch says that it wrote."""
_SLICES = {SEGMENT_LOAD.name: 24, EVENTS.name: 4}
"""In how many parts a large day of a table is looked at."""
_LARGE_DAY = 100_000
"""Rows of it."""
_WHOLE = "SELECT DISTINCT batch_id AS number, batch_at FROM batches"


class RowChecks:
    """Check of the rows of a lake as they stand."""

    def __init__(self, lake: str, leave_out: Iterable[str] = (), stuck_seconds: float = STUCK_SECONDS) -> None:
        """`leave_out`: unreadable tables; questions that need them are skipped. Raises what Delta raises.

        `stuck_seconds`: age from which an open decision is stuck.
        """
        self._lake, self._sql, self._stuck_seconds = lake, LakeSql(lake), stuck_seconds
        self._without = frozenset(leave_out)
        for table in READ_FIRST:
            if table.name not in self._without:
                self._ask(f"SELECT 1 FROM {table.name} LIMIT 0")

    def look(self, findings: Findings) -> None:
        """Apply every rule to every readable table. Raises `SqlError`, `DeltaError` or `OSError`."""
        for name in TABLES:
            if name in self._without:
                continue
            days = self._ask(f"SELECT day, count(*) AS number FROM {name} GROUP BY day ORDER BY day")
            findings.rows[name] = sum(row["number"] for row in days)
            for row in days:
                self._duplicates(findings, name, row["day"], row["number"])
        if self._can(BATCHES):
            self._balances(findings)
        for name in COUNTED:
            if self._can(BATCHES, TABLES[name]):
                self._counts(findings, name)
        if self._can(BATCHES, EVENTS):
            for table, time_column in ((DECISIONS, "decided_at"), (HOLDS, "since")):
                if self._can(table):
                    self._numbers(findings, table.name, time_column)
        if self._can(HOLDS, EVENTS):
            self._layouts(findings)
        if self._can(DECISIONS, OUTCOMES, WAITS):
            self._orphans(findings)
        if self._can(DECISIONS, OUTCOMES, BATCHES):
            self._stuck(findings)
        if self._can(OUTCOMES, EVENTS, BATCHES):
            self._unheard(findings)
        self._agreement(findings)

    def _agreement(self, findings: Findings) -> None:
        for rule in rules(self._forgotten(BATCHES), self._forgotten(EVENTS) is None):
            for batch in self._stream(rule.sql) if self._can(*rule.needs) else ():
                for row in batch.to_pylist():
                    findings.add(rule.kind, rule.table.name, rule.text.format_map(_in_words(row)))

    def _forgotten(self, table: Table) -> date | None:
        opened = open_table(self._lake, table)
        return None if opened is None else forgotten_before(opened)

    def _can(self, *tables: Any) -> bool:
        return not any(table.name in self._without for table in tables)

    def _ask(self, sql: str) -> list[dict[str, Any]]:
        return self._sql.rows(sql, is_own=True)

    def _stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        return iter(self._sql.ask(sql, is_own=True))

    def _duplicates(self, findings: Findings, name: str, day: date, number: int) -> None:
        keys = ", ".join(KEYS[name])
        parts = _SLICES.get(name, 1) if number >= _LARGE_DAY else 1
        for part in range(parts):
            where = f"day = DATE '{day}'"
            if parts > 1:
                begin = datetime(day.year, day.month, day.day, tzinfo=timezone.utc) + timedelta(hours=24 / parts) * part
                end = begin + timedelta(hours=24 / parts)
                time_column = COUNTED[name][0]
                where += f" AND {time_column} >= {_instant(begin)} AND {time_column} < {_instant(end)}"
            for row in self._ask(
                f"SELECT {keys}, count(*) AS times FROM {name} WHERE {where} GROUP BY {keys} HAVING count(*) > 1 "
                f"ORDER BY {keys}"
            ):
                times = row.pop("times")
                findings.add("duplicate", name, f"{_told(row)}: {times} rows of day {day}")

    def _balances(self, findings: Findings) -> None:
        for row in self._ask(
            "SELECT generation, batch_id FROM batches "
            "WHERE messages <> messages_accepted + messages_suppressed + dead_letters "
            "OR samples <> samples_accepted + samples_insignificant + samples_stale ORDER BY batch_at"
        ):
            findings.add("unbalanced", BATCHES.name, _told(row))
        for batch in self._stream("SELECT * FROM batches WHERE checksum IS NOT NULL ORDER BY batch_at"):
            changed = pc.not_equal(checksums_of_batches(batch), batch["checksum"])
            for row in batch.select(["generation", "batch_id", "batch_at"]).filter(changed).to_pylist():
                findings.add("changed", BATCHES.name, _told(row))

    def _counts(self, findings: Findings, name: str) -> None:
        time_column, counted = COUNTED[name]
        forgotten = self._forgotten(TABLES[name])
        since = "" if forgotten is None else f" AND b.batch_at >= {_instant(datetime.combine(forgotten, time()))}"
        for batch in self._stream(
            f"WITH there AS (SELECT batch_id AS number, {time_column} AS at, count(*) AS there FROM {name} "
            f"GROUP BY batch_id, {time_column}) "
            f"SELECT b.batch_id, b.batch_at, {counted} AS said, coalesce(t.there, 0) AS there FROM batches b "
            "LEFT JOIN there t ON t.number = b.batch_id AND t.at = b.batch_at "
            f"WHERE coalesce(t.there, 0) <> {counted}{since} ORDER BY b.batch_at"
        ):
            for row in batch.to_pylist():
                kind = "missing rows" if row["there"] < row["said"] else "too many rows"
                which = f"batch {row['batch_id']} at {_time(row['batch_at'])}"
                findings.add(kind, name, f"{which} wrote {row['said']} rows; {row['there']} are there")

    def _numbers(self, findings: Findings, name: str, time_column: str) -> None:
        restarts = self._ask("SELECT count(DISTINCT generation) > 1 AS restarts FROM batches")[0]["restarts"]
        # Batches of one checkpoint are in the order of their numbers, also when the clock was set back.
        order = f"r.{time_column}" if restarts else "r.batch_id"
        stream = self._stream(
            f"WITH whole AS ({_WHOLE}), deleted AS (SELECT DISTINCT subject AS gone FROM events "
            "WHERE type = 'layout' AND cause = 'deleted') "
            f"SELECT r.family, r.subject, r.seq, r.{time_column} AS at, w.number IS NOT NULL AS is_whole, "
            f"{'true' if restarts else 'd.gone IS NOT NULL'} AS begins_anew FROM {name} r "
            f"LEFT JOIN whole w ON w.number = r.batch_id AND w.batch_at = r.{time_column} "
            "LEFT JOIN deleted d ON d.gone = r.subject "
            f"ORDER BY r.family, r.subject, {order}, r.seq"
        )
        forgotten = self._forgotten(TABLES[name])
        rows = (Numbered(*row) for batch in stream for row in zip(*(each.to_pylist() for each in batch), strict=True))
        for gap in gaps(rows):
            if forgotten is not None and gap.row.at.date() < forgotten:
                continue
            before = "the first" if gap.since is None else f"after the one at {_time(gap.since)}"
            text = f"{gap.row.subject} at {_time(gap.row.at)}: number {gap.row.seq}, {before}, should be {gap.expected}"
            if name == HOLDS.name:
                text += "; what held in between is not on record"
            findings.add("gap", name, text)

    def _layouts(self, findings: Findings) -> None:
        forgotten = self._forgotten(EVENTS)
        since = "" if forgotten is None else f" AND since >= {_instant(datetime.combine(forgotten, time()))}"
        holds = (
            (row["subject"], row["layout_digest"], row["number"])
            for row in self._ask(
                f"SELECT subject, layout_digest, count(*) AS number FROM holds WHERE layout_digest IS NOT NULL{since} "
                "GROUP BY subject, layout_digest"
            )
        )
        events = self._stream("SELECT subject, body FROM events WHERE type = 'layout'")
        for text, _ in unknown_layouts(holds, events):
            findings.add("unknown layout", HOLDS.name, text)

    def _orphans(self, findings: Findings) -> None:
        for table in (OUTCOMES, WAITS):
            for row in self._ask(
                f"SELECT o.decision_id, o.subject, count(*) AS number FROM {table.name} o "
                "LEFT ANTI JOIN decisions d ON d.decision_id = o.decision_id "
                "GROUP BY o.decision_id, o.subject ORDER BY o.subject, o.decision_id"
            ):
                findings.add(
                    "orphan", table.name, f"{row['number']} rows of {_decision(row)}, which is not in decisions"
                )
        for row in self._ask(
            "SELECT decision_id, subject, count(*) AS number FROM outcomes WHERE status = 'applied' "
            "GROUP BY decision_id, subject HAVING count(*) > 1 ORDER BY subject"
        ):
            findings.add("applied twice", OUTCOMES.name, f"{_decision(row)} has {row['number']} rows `applied`")

    def _stuck(self, findings: Findings) -> None:
        for row in self._ask(
            "WITH ended AS (SELECT DISTINCT decision_id FROM outcomes WHERE status <> 'intent'), "
            "newest AS (SELECT max(batch_at) AS now FROM batches) "
            "SELECT d.decision_id, d.subject, min(d.decided_at) AS at FROM decisions d CROSS JOIN newest n "
            "LEFT ANTI JOIN ended e ON e.decision_id = d.decision_id "
            f"WHERE d.decided_at < n.now - INTERVAL '{int(self._stuck_seconds)} seconds' "
            "GROUP BY d.decision_id, d.subject ORDER BY at"
        ):
            findings.add("open", DECISIONS.name, f"{_decision(row)} of {_time(row['at'])} has not ended")

    def _unheard(self, findings: Findings) -> None:
        if (newest := self._ask("SELECT max(batch_at) AS at FROM batches")[0]["at"]) is None:
            return
        first, last, forgotten = newest - ANNOUNCED_FOR, newest - HEARD_WITHIN, self._forgotten(EVENTS)
        if forgotten is not None:
            first = max(first, datetime.combine(forgotten, time(), timezone.utc))
        for row in self._ask(
            "SELECT o.decision_id, o.subject, o.status, min(o.at) AS at FROM outcomes o LEFT ANTI JOIN "
            f"(SELECT decision_id FROM events WHERE type = 'outcome' AND day >= DATE '{first.date()}') e "
            "ON e.decision_id = o.decision_id WHERE o.status <> 'intent' AND o.family IN ('autoscale', 'bundles') "
            f"AND o.at >= {_instant(first)} AND o.at < {_instant(last)} "
            "GROUP BY o.decision_id, o.subject, o.status ORDER BY at"
        ):
            findings.add("unheard", OUTCOMES.name, f"{_decision(row)} was {row['status']} at {_time(row['at'])}")


def _decision(row: dict[str, Any]) -> str:
    return f"decision {row['decision_id']} of {row['subject']}"


def _instant(instant: datetime) -> str:
    return f"arrow_cast('{instant:%Y-%m-%dT%H:%M:%S}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"


def _time(instant: datetime) -> str:
    return f"{instant:%F %T} UTC"


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _time(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _told(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _in_words(row).items() if value is not None)
