"""What brakes the executor, and what waits for it: pauses, stops, approvals, counts, and the decisions that are held.

Stage: the read end, over the whole lake at once; `anabranch executor status`, `approve` and `reject` ask here. The live
screen follows the same tables (`ledger.live`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lake.brakes import Acts, BrakeReader
from lake.tables import read_columns
from lake.tail import StoredRow
from schemas.tables import DECISIONS, OUTCOMES, WAITS

INTENT = "intent"


@dataclass(frozen=True)
class Known:
    """A decision on record, and how far it has come."""

    decision_id: str
    subject: str
    begun_at: datetime | None
    """Of its first intent."""
    end: StoredRow | None
    """Its terminal row of `outcomes`."""


@dataclass(frozen=True)
class Standing:
    """The executor's brakes as they stand."""

    acts: Acts
    open: int
    """Decisions without an end."""
    begun: int
    """Those of them that have an intent on record."""
    waiting: tuple[StoredRow, ...]
    """Newest rows of `waits` that still hold, with the columns of their decisions (`action`, `arguments`, `decided_at`,
    and its reason as `cause`); by the time of the decision."""
    calls: tuple[StoredRow, ...]
    """Rows of `outcomes` since the given instant that tell of a call: `subject`, `at`."""
    failures: tuple[datetime, ...]
    """Ends since then that count as failures."""


def known_decisions(lake: str, ids: Sequence[str]) -> dict[str, Known]:
    """Of some ids, the decisions that are in the lake. Raises `DeltaError` or `OSError`."""
    wanted = set(ids)
    decided = {row["decision_id"]: row for row in _rows(lake, DECISIONS, "decision_id", "subject")}
    steps = [
        row for row in _rows(lake, OUTCOMES, "decision_id", "status", "at", "error") if row["decision_id"] in wanted
    ]
    known = {}
    for one in wanted & decided.keys():
        mine = sorted((row for row in steps if row["decision_id"] == one), key=lambda row: row["at"])
        begun = next((row["at"] for row in mine if row["status"] == INTENT), None)
        end = next((row for row in mine if row["status"] != INTENT), None)
        known[one] = Known(one, decided[one]["subject"], begun, end)
    return known


def standing(lake: str, since: datetime, is_call_since: datetime) -> Standing:
    """How the brakes stand; failures are counted from `since` on, calls from `is_call_since` on.

    Raises `DeltaError` or `OSError`.
    """
    reader = BrakeReader(lake)
    reader.read()
    steps = sorted(
        _rows(lake, OUTCOMES, "decision_id", "subject", "status", "attempt", "at"), key=lambda row: row["at"]
    )
    ended = {row["decision_id"] for row in steps if row["status"] != INTENT}
    newest = {row["decision_id"]: row["at"] for row in steps}
    columns = ("decision_id", "subject", "action", "arguments", "reason", "decided_at")
    decided = {row["decision_id"]: row for row in _rows(lake, DECISIONS, *columns) if row["decision_id"] not in ended}
    waits: dict[str, StoredRow] = {}
    for row in sorted(_rows(lake, WAITS, "decision_id", "subject", "brake", "reason", "until", "at"), key=_at):
        waits[row["decision_id"]] = row
    waiting = [
        {**row, **{name: decided[one][name] for name in ("action", "arguments", "decided_at")},
         "cause": decided[one]["reason"]}
        for one, row in waits.items()
        if one in decided and (one not in newest or newest[one] < row["at"])
    ]  # fmt: skip
    calls = {(row["decision_id"], row["attempt"]): row for row in reversed(steps) if row["attempt"]}
    return Standing(
        acts=reader.acts,
        open=len(decided),
        begun=sum(one in newest for one in decided),
        waiting=tuple(sorted(waiting, key=lambda row: row["decided_at"])),
        calls=tuple(row for row in calls.values() if row["at"] > is_call_since),
        failures=tuple(
            row["at"]
            for row in steps
            if row["at"] > since and (row["status"] == "failed" or (row["status"] == "rejected" and row["attempt"]))
        ),
    )


def _at(row: StoredRow) -> Any:
    return row["at"]


def _rows(lake: str, table: Any, *columns: str) -> list[StoredRow]:
    rows: list[StoredRow] = read_columns(lake, table, columns).to_pylist()
    return rows
