"""State of the executor's brakes in the lake: pauses, stops, approvals, and waiting decisions.

Stage: under `anabranch decisions waiting`, `approve` and `reject`, which must be quick on a history of years. So no
table is read as a whole: reads are limited to days, ids and columns. The live screen follows the same tables
(`anabranch.history.live`).
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import reduce
from operator import and_, itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.brakes import Acts, BrakeReader
from lake.tables import read_columns
from lake.tail import StoredRow
from schemas.tables.rows import DECISIONS, OUTCOMES, WAITS, Table

INTENT = "intent"
OPEN_DAYS = 7
"""Older decisions are not read: they have expired."""
_DAY = timedelta(days=1)
_at = itemgetter("at")


@dataclass(frozen=True)
class TrackedDecision:
    """A decision on record, with its progress."""

    decision_id: str
    family: str
    subject: str
    action: str
    arguments: str
    decided_at: datetime
    begun_at: datetime | None
    """Time of its first intent."""
    end: StoredRow | None
    """Its terminal row of `outcomes`."""


@dataclass(frozen=True)
class SafeguardState:
    """Current state of the executor's brakes."""

    acts: Acts
    open: int
    """Decisions of the last `OPEN_DAYS` without an end."""
    begun: int
    """Open decisions with an intent on record."""
    waiting: tuple[StoredRow, ...]
    """Newest rows of `waits` that still hold, by time of the decision; each has its `action`, `arguments` and
    `decided_at`, and its reason as `cause`."""
    calls: tuple[StoredRow, ...]
    """First row of `outcomes` for each call: `subject`, `at`."""
    failures: tuple[datetime, ...]
    """Times of the ends that count as failures."""


def find_decisions(lake: str, ids: Collection[str]) -> dict[str, TrackedDecision]:
    """Return the decisions with these ids that are on record, by id. Raises `DeltaError` or `OSError`."""
    columns = ("decision_id", "family", "subject", "action", "arguments", "decided_at")
    if not (decided := _rows(lake, DECISIONS, columns, _among("decision_id", ids))):
        return {}
    # Whatever the clocks say, no step of a decision is on record a day before it.
    first = min(row["decided_at"] for row in decided).date() - _DAY
    steps = _rows(lake, OUTCOMES, ("decision_id", "status", "at", "error"), _since(first), _among("decision_id", ids))
    steps.sort(key=_at)
    begun = {row["decision_id"]: row["at"] for row in reversed(steps) if row["status"] == INTENT}
    ends = {row["decision_id"]: row for row in reversed(steps) if row["status"] != INTENT}
    return {
        row["decision_id"]: TrackedDecision(
            **row, begun_at=begun.get(row["decision_id"]), end=ends.get(row["decision_id"])
        )
        for row in decided
    }


def find_replacement(lake: str, decision: TrackedDecision) -> str | None:
    """Return the newest later decision on the same subject, preferably of the same action and arguments.

    Raises `DeltaError` or `OSError`.
    """
    later = _rows(
        lake,
        DECISIONS,
        ("decision_id", "family", "action", "arguments", "decided_at"),
        _since(decision.decided_at.date()),
        pc.field("subject") == decision.subject,
        pc.field("decided_at") > pa.scalar(decision.decided_at),
    )
    wanted = decision.action, json.loads(decision.arguments)
    later = [row for row in later if row["family"] == decision.family]
    later.sort(key=lambda row: ((row["action"], json.loads(row["arguments"])) == wanted, row["decided_at"]))
    return later[-1]["decision_id"] if later else None


def read_safeguards(lake: str, failures_since: datetime, calls_since: datetime, now: datetime) -> SafeguardState:
    """Return the current state of the brakes. Raises `DeltaError` or `OSError`."""
    reader = BrakeReader(lake)
    reader.read()
    columns = ("decision_id", "subject", "action", "arguments", "reason", "decided_at")
    opened = open_decisions(lake, now.date() - OPEN_DAYS * _DAY)
    days = set(opened["day"].to_pylist())
    ids = opened["decision_id"].to_pylist()
    decided = {
        row["decision_id"]: row
        for row in _rows(lake, DECISIONS, columns, _among("day", days), _among("decision_id", ids))
    }
    of_open = (_since(min(days, default=now.date()) - _DAY), _among("decision_id", ids))
    steps = _newest_rows(lake, OUTCOMES, ("decision_id", "at"), *of_open)
    waits = _newest_rows(lake, WAITS, ("decision_id", "subject", "brake", "reason", "until", "at"), *of_open)
    waiting = [
        {
            **wait,
            **{name: decided[identity][name] for name in ("action", "arguments", "decided_at")},
            "cause": decided[identity]["reason"],
        }
        for identity, wait in waits.items()
        if identity in decided and (identity not in steps or steps[identity]["at"] < wait["at"])
    ]
    first = min(failures_since, calls_since)
    recent = _rows(
        lake,
        OUTCOMES,
        ("decision_id", "subject", "status", "attempt", "at"),
        _since(first.date()),
        pc.field("at") > pa.scalar(first),
    )
    recent.sort(key=_at)
    # A call counts from its first row.
    calls = {(row["decision_id"], row["attempt"]): row for row in reversed(recent) if row["attempt"]}
    return SafeguardState(
        acts=reader.acts,
        open=len(decided),
        begun=len(steps.keys() & decided.keys()),
        waiting=tuple(sorted(waiting, key=lambda row: row["decided_at"])),
        calls=tuple(row for row in calls.values() if row["at"] > calls_since),
        failures=tuple(
            row["at"]
            for row in recent
            if row["at"] > failures_since
            and (row["status"] == "failed" or (row["status"] == "rejected" and row["attempt"]))
        ),
    )


def open_decisions(lake: str, first: date) -> pa.Table:
    """Return `decision_id` and `day` of open decisions since a day. Raises `DeltaError` or `OSError`."""
    decided = read_columns(lake, DECISIONS, ("decision_id", "day"), _since(first))
    is_end = _since(first - _DAY) & (pc.field("status") != INTENT)
    ended = read_columns(lake, OUTCOMES, ("decision_id",), is_end)
    return decided.filter(pc.invert(pc.is_in(decided["decision_id"], value_set=ended["decision_id"])))


def _since(first: date) -> pc.Expression:
    return pc.field("day") >= pa.scalar(first)


def _among(column: str, values: Collection[Any]) -> pc.Expression:
    return pc.field(column).isin(list(values)) if values else pc.scalar(False)


def _rows(lake: str, table: Table, columns: tuple[str, ...], *where: pc.Expression) -> list[StoredRow]:
    rows: list[StoredRow] = read_columns(lake, table, columns, reduce(and_, where)).to_pylist()
    return rows


def _newest_rows(lake: str, table: Table, columns: tuple[str, ...], *where: pc.Expression) -> dict[str, StoredRow]:
    """Return the newest row of each decision, by its id."""
    return {row["decision_id"]: row for row in sorted(_rows(lake, table, columns, *where), key=_at)}
