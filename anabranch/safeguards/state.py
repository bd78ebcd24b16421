"""State of the executor's brakes: pauses, stops, approvals, counts, and the waiting decisions.

Stage: the read end; `anabranch decisions waiting`, `approve` and `reject` ask here, in an emergency and on a history of
years. So no table is read as a whole: days, ids and columns are chosen where the files are read. The live screen
follows the same tables (`anabranch.history.live`).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.brakes import Acts, BrakeReader
from lake.tables import read_columns
from lake.tail import StoredRow
from schemas.tables.rows import DECISIONS, OUTCOMES, WAITS, Table

INTENT = "intent"
OPEN_DAYS = 7
"""Decisions that were taken longer ago are not looked at: an executor that works has ended them (they expire)."""
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class KnownDecision:
    """A recorded decision, and its progress."""

    decision_id: str
    family: str
    subject: str
    action: str
    arguments: str
    decided_at: datetime
    begun_at: datetime | None
    """Of its first intent."""
    end: StoredRow | None
    """Its terminal row of `outcomes`."""


@dataclass(frozen=True)
class SafeguardState:
    """Current state of the executor's brakes."""

    acts: Acts
    open: int
    """Decisions of the last `OPEN_DAYS` without an end."""
    begun: int
    """Those of them that have an intent on record."""
    waiting: tuple[StoredRow, ...]
    """Newest rows of `waits` that still hold, with the columns of their decisions (`action`, `arguments`, `decided_at`,
    and its reason as `cause`); by the time of the decision."""
    calls: tuple[StoredRow, ...]
    """Rows of `outcomes` since the given instant that tell of a call: `subject`, `at`."""
    failures: tuple[datetime, ...]
    """Ends since then that count as failures."""


def known_decisions(lake: str, ids: Collection[str]) -> dict[str, KnownDecision]:
    """Return those of some decisions that are in the lake, by id. Raises `DeltaError` or `OSError`."""
    columns = ("decision_id", "family", "subject", "action", "arguments", "decided_at")
    decided = _rows(lake, DECISIONS, columns, _among("decision_id", ids))
    if not decided:
        return {}
    # By any clock: nothing of a decision is on record a day before it.
    first = min(row["decided_at"] for row in decided).date() - _DAY
    steps = _rows(lake, OUTCOMES, ("decision_id", "status", "at", "error"), _since(first), _among("decision_id", ids))
    steps.sort(key=_at)
    begun = {row["decision_id"]: row["at"] for row in reversed(steps) if row["status"] == INTENT}
    ends = {row["decision_id"]: row for row in reversed(steps) if row["status"] != INTENT}
    return {
        row["decision_id"]: KnownDecision(
            **row, begun_at=begun.get(row["decision_id"]), end=ends.get(row["decision_id"])
        )
        for row in decided
    }


def replacement_of(lake: str, decision: KnownDecision) -> str | None:
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


def standing(lake: str, since: datetime, is_call_since: datetime, now: datetime) -> SafeguardState:
    """Return the current state of the brakes.

    Failures count from `since` on, calls from `is_call_since` on. Raises `DeltaError` or `OSError`.
    """
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
    newest = {
        row["decision_id"]: row["at"] for row in sorted(_rows(lake, OUTCOMES, ("decision_id", "at"), *of_open), key=_at)
    }
    waits = {
        row["decision_id"]: row
        for row in sorted(
            _rows(lake, WAITS, ("decision_id", "subject", "brake", "reason", "until", "at"), *of_open), key=_at
        )
    }
    waiting = [
        {
            **row,
            **{name: decided[identity][name] for name in ("action", "arguments", "decided_at")},
            "cause": decided[identity]["reason"],
        }
        for identity, row in waits.items()
        if identity in decided and (identity not in newest or newest[identity] < row["at"])
    ]
    first = min(since, is_call_since)
    recent = _rows(
        lake,
        OUTCOMES,
        ("decision_id", "subject", "status", "attempt", "at"),
        _since(first.date()),
        pc.field("at") > pa.scalar(first),
    )
    recent.sort(key=_at)
    # A call counts at the first row that knows of it.
    calls = {(row["decision_id"], row["attempt"]): row for row in reversed(recent) if row["attempt"]}
    return SafeguardState(
        acts=reader.acts,
        open=len(decided),
        begun=len(newest.keys() & decided.keys()),
        waiting=tuple(sorted(waiting, key=lambda row: row["decided_at"])),
        calls=tuple(row for row in calls.values() if row["at"] > is_call_since),
        failures=tuple(
            row["at"]
            for row in recent
            if row["at"] > since and (row["status"] == "failed" or (row["status"] == "rejected" and row["attempt"]))
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


def _at(row: StoredRow) -> Any:
    return row["at"]


def _rows(lake: str, table: Table, columns: tuple[str, ...], *where: pc.Expression) -> list[StoredRow]:
    rows: list[StoredRow] = read_columns(lake, table, columns, reduce(and_, where)).to_pylist()
    return rows
