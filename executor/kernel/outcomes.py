"""Rows of the `outcomes` table: what was begun, how it ended, and that exactly one executor writes it.

Stage: between what happens in memory (`attempt.Ended`, …) and what is on record. `lake.lease` shuts out an executor
that was overtaken.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.lease import LeasedTable, LeaseLost
from lake.tables import OpenTable, create_table
from schemas.tables import OUTCOMES, OutcomeRow

LEASE = "executor-lease"
"""Names the lease of an executor of an older release, which has no shards, in the table's log."""
ROUND = 2**20
"""An older executor takes the next token of `LEASE`. One of this release leaves a multiple of this, and knows by any
other token that an older one has started."""
INTENT = "intent"


@dataclass(frozen=True)
class Begun:
    """A decision with an intent on record and no end."""

    at: datetime
    """Of its first intent."""
    calls: int
    """Calls on record."""


@dataclass(frozen=True)
class RecordedEnd:
    """A terminal row, as far as its announcement needs it."""

    decision_id: str
    family: str
    subject: str
    status: str
    error: str | None
    at: datetime


@dataclass
class Recorded:
    """What was on record when the lease was taken."""

    ended: set[str] = field(default_factory=set)
    """Ids of the decisions with a terminal row."""
    begun: dict[str, Begun] = field(default_factory=dict)


@dataclass(frozen=True)
class Recently:
    """What the brakes count, from a look at the newest rows."""

    calls: list[tuple[str, str, datetime]]
    """Family and subject of each call, and an instant at which it had ended."""
    failures: list[datetime]


def is_failure(status: str, calls: int) -> bool:
    """Whether an end is one that brakes count: not applied although it was tried, and not for lack of a subject."""
    return status == "failed" or (status == "rejected" and calls > 0)


@dataclass(frozen=True)
class Shard:
    """The part of the subjects that an executor acts on, and its lease on them."""

    number: int
    token: int
    covers: Callable[[str], bool]
    """Whether a subject is in it."""


class OutcomeLedger:
    """The `outcomes` table of a lake, made if it is missing. One thread uses it."""

    def __init__(self, lake: str, mode: str, shard: Shard | None = None, elsewhere: Collection[str] = ()) -> None:
        """Takes the lease: from here on any older executor is shut out. Raises `LeaseLost`, or what Delta raises.

        `shard`: of which shard; None: the lease on all subjects, with the next token. `elsewhere`: families whose rows
        are of other processes.
        """
        self._elsewhere = frozenset(elsewhere)
        identity = ("decision_id", "status", "attempt", "executor")
        app, token = (LEASE, None) if shard is None else (f"executor-shard-{shard.number}", shard.token)
        self._table = LeasedTable(lake, OUTCOMES, app, identity, "executor", "applies decisions", token)
        self._mode = mode
        self._shard = shard
        self.token = self._table.token
        self.executor = f"{process_name()}#{self.token}" + (f"/{shard.number}" if shard and shard.number else "")

    def covers(self, subject: str) -> bool:
        """Whether a subject is in the shard."""
        return self._shard is None or self._shard.covers(subject)

    def recorded(self) -> Recorded:
        """What is on record, read once: all ends by their ids alone, and the intents that have none.

        Of a history of years only the ids become Python's: everything else is left out in columns.
        """
        ends = self._covered(self._table.read(("decision_id", "subject"), [("status", "!=", INTENT)]))
        ended = ends["decision_id"].unique()
        steps = self._table.read(("decision_id", "subject", "attempt", "at"), [("status", "=", INTENT)])
        steps = self._covered(steps.filter(pc.invert(pc.is_in(steps["decision_id"], value_set=ended))))
        begun = steps.group_by("decision_id").aggregate([("at", "min"), ("attempt", "max")])
        columns = (begun[name].to_pylist() for name in ("decision_id", "at_min", "attempt_max"))
        return Recorded(set(ended.to_pylist()), {one: Begun(*rest) for one, *rest in zip(*columns, strict=True)})

    def _covered(self, rows: pa.Table) -> pa.Table:
        """The rows of subjects that are in the shard."""
        if self._shard is None:
            return rows
        mine = [subject for subject in rows["subject"].unique().to_pylist() if self.covers(subject)]
        return rows.filter(pc.is_in(rows["subject"], value_set=pa.array(mine, pa.string())))

    def since(self, first: datetime) -> Recently:
        """What was done since an instant. A call counts at the first row since then that knows of it."""
        columns = ("decision_id", "family", "subject", "status", "attempt", "at")
        found = self._table.read(columns, [("day", ">=", first.date()), ("at", ">=", first)]).sort_by("at")
        rows = [
            row for row in found.to_pylist() if self.covers(row["subject"]) and row["family"] not in self._elsewhere
        ]
        calls = {(row["decision_id"], row["attempt"]): row for row in reversed(rows) if row["attempt"]}
        return Recently(
            [(row["family"], row["subject"], row["at"]) for row in calls.values()],
            [row["at"] for row in rows if is_failure(row["status"], row["attempt"])],
        )

    def failures_elsewhere(self, first: datetime) -> list[datetime]:
        """When decisions of the other shards failed, since an instant: the limit on failures is of the whole fleet."""
        if self._shard is None:
            return []
        columns = ("family", "subject", "status", "attempt", "at")
        found = self._table.read(columns, [("day", ">=", first.date()), ("at", ">=", first), ("status", "!=", INTENT)])
        return [
            row["at"]
            for row in found.to_pylist()
            if is_failure(row["status"], row["attempt"])
            and row["family"] not in self._elsewhere
            and not self.covers(row["subject"])
        ]

    def ends(self, decisions: Collection[str]) -> list[RecordedEnd]:
        """How those of some decisions ended that did; ids in, the newest terminal row of each out."""
        return self._ends(("decision_id", "in", list(decisions)))

    def ends_since(self, first: date) -> list[RecordedEnd]:
        """The same of the decisions of the shard that ended on a day or later."""
        return [
            end
            for end in self._ends(("day", ">=", first))
            if self.covers(end.subject) and end.family not in self._elsewhere
        ]

    def _ends(self, where: tuple[str, str, Any]) -> list[RecordedEnd]:
        columns = ("decision_id", "family", "subject", "status", "error", "at")
        found = self._table.read(columns, [where, ("status", "!=", INTENT)])
        ends = (RecordedEnd(**row) for row in found.sort_by("at").to_pylist())
        return list({end.decision_id: end for end in ends}.values())

    def row(
        self,
        *,
        decision_id: str,
        family: str,
        subject: str,
        status: str,
        attempt: int,
        at: datetime,
        layout_epoch: int | None = None,
        seen: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> OutcomeRow:
        """A row of this executor."""
        return OutcomeRow(
            decision_id=decision_id, family=family, subject=subject, status=status, attempt=attempt, at=at,
            layout_epoch=layout_epoch, seen=json.dumps(seen or {}, separators=(",", ":")), error=error,
            executor=self.executor, mode=self._mode, day=at.date(),
        )  # fmt: skip

    def append(self, rows: Sequence[OutcomeRow]) -> None:
        """One commit with all rows. Raises `LeaseLost`, or what Delta raises: then the steps can be given again."""
        self._table.append(rows)

    def check_lease(self) -> None:
        """Raises `LeaseLost` when another executor has taken over since."""
        self._table.check()
        if self._shard is not None and self._table.last_seen(LEASE) % ROUND:
            raise LeaseLost(
                "an executor of an older release was started on this lake, and knows nothing of shards: stop it; this "
                "one stops now, and shuts it out when it is started again"
            )


def process_name() -> str:
    """Names this process, for people: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def shut_out_older(lake: str) -> None:
    """Makes an executor of an older release stop, which knows one lease on all subjects. Raises what Delta raises."""
    newest = OpenTable(create_table(lake, OUTCOMES)).newest_transaction(LEASE) or 0
    if newest % ROUND:
        identity = ("decision_id", "status", "attempt", "executor")
        with suppress(LeaseLost):
            LeasedTable(
                lake, OUTCOMES, LEASE, identity, "executor", "applies decisions", newest - newest % ROUND + ROUND
            )
