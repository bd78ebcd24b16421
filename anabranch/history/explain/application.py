"""Progress of a decision: the executor's newest step with it, and the brake that holds it back."""

from datetime import datetime
from typing import NamedTuple

import pyarrow.compute as pc

from lake.tables import stream_columns
from lake.tail import StoredRow
from schemas.tables.rows import OUTCOMES, WAITS, Table

INTENT = "intent"


class Became(NamedTuple):
    """Newest step of the executor with a decision, from the whole record."""

    status: str
    """Of the newest step: `intent`, `applied`, `superseded`, `rejected`, `failed` or `observed`; or `waits`."""
    at: datetime
    mode: str | None
    """Of the executor: `act`, `approve` or `observe`; None: it waits."""
    error: str | None
    """Of what waits: which brake holds it, and why."""


def became(lake: str, decision_id: str) -> Became | None:
    """Return a decision's end, newest step or holding brake, or None. Raises what Delta raises."""
    steps = [
        Became(row["status"], row["at"], row["mode"], row["error"])
        for row in _rows(lake, OUTCOMES, decision_id, "status", "at", "mode", "error")
    ]
    ended = [step for step in steps if step.status != INTENT]
    waits = _rows(lake, WAITS, decision_id, "brake", "reason", "at")
    if waits and not ended:
        newest = max(waits, key=lambda row: row["at"])
        # A step that is as new as the brake's change, or newer, says that nothing holds it any more.
        if all(step.at < newest["at"] for step in steps):
            return Became("waits", newest["at"], None, f"{newest['brake']}: {newest['reason']}")
    return max(ended or steps, key=lambda step: step.at, default=None)


def _rows(lake: str, table: Table, decision_id: str, *columns: str) -> list[StoredRow]:
    where = pc.field("decision_id") == decision_id
    return [row for rows in stream_columns(lake, table, columns, 65_536, where) for row in rows.to_pylist()]
