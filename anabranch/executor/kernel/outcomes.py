"""Rows of the `outcomes` table: intents and ends, written by exactly one executor per shard.

Stage: between values in memory (`attempt.DecisionEnded`, …) and rows on record. `lake.lease` fences off an executor
that was overtaken.
"""

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

from anabranch.executor.kernel.family import ABSENT
from lake.lease import LeasedTable, LeaseLost
from lake.tables import OpenTable, create_table
from schemas.tables.rows import OUTCOMES, OutcomeRow

LEASE = "executor-lease"
"""Name, in the table's log, of the lease of executors of older releases, which have no shards."""
ROUND = 2**20
"""Marker in the token of `LEASE`.

An older executor takes the next token. This release always leaves a multiple of `ROUND`, so any other token shows that
an older executor has started.
"""
INTENT = "intent"
END_COLUMNS = ("decision_id", "family", "subject", "status", "error", "at", "seen")
"""Columns of `outcomes` that an announcement needs."""


@dataclass(frozen=True)
class BegunDecision:
    """A decision with an intent on record and no end."""

    at: datetime
    """Instant of its first intent."""
    calls: int
    """Recorded calls."""


@dataclass(frozen=True)
class RecordedEnd:
    """A terminal row, with the columns that its announcement needs."""

    decision_id: str
    family: str
    subject: str
    status: str
    error: str | None
    at: datetime
    absent: bool = False
    """Superseded because the subject does not exist."""


def read_end(row: Mapping[str, Any]) -> RecordedEnd:
    """Return the end in a terminal row (a mapping with `END_COLUMNS`)."""
    absent = row["status"] == "superseded" and json.loads(row["seen"] or "{}") == ABSENT
    return RecordedEnd(**{column: row[column] for column in END_COLUMNS if column != "seen"}, absent=absent)


@dataclass
class RecordedOutcomes:
    """Contents of the record when the lease was taken."""

    ended: set[str] = field(default_factory=set)
    """Ids of the decisions with a terminal row."""
    begun: dict[str, BegunDecision] = field(default_factory=dict)


@dataclass(frozen=True)
class Recently:
    """Recent calls and failures that the brakes count."""

    calls: list[tuple[str, str, datetime]]
    """Family and subject of each call, and an instant at which it had ended."""
    failures: list[datetime]


def is_failure(status: str, calls: int) -> bool:
    """Return whether an end counts as a failure: tried, not applied, though the subject exists."""
    return status == "failed" or (status == "rejected" and calls > 0)


@dataclass(frozen=True)
class Shard:
    """Part of the subjects that an executor acts on, and its lease on them."""

    number: int
    token: int
    covers: Callable[[str], bool]
    """Returns whether a subject is in the shard."""


class OutcomeLedger:
    """Table `outcomes` of a lake, created if missing. Used by one thread."""

    def __init__(self, lake: str, mode: str, shard: Shard | None = None, elsewhere: Collection[str] = ()) -> None:
        """Take the lease, which fences off any older executor. Raises `LeaseLost` and Delta's errors.

        `shard` None: the lease on all subjects, with the next token. `elsewhere`: families whose rows belong to other
        processes.
        """
        self._elsewhere = frozenset(elsewhere)
        identity = ("decision_id", "status", "attempt", "executor")
        app, token = (LEASE, None) if shard is None else (f"executor-shard-{shard.number}", shard.token)
        self._table = LeasedTable(lake, OUTCOMES, app, identity, "executor", "applies decisions", token)
        self._mode, self._shard = mode, shard
        self.token = self._table.token
        self.executor = f"{process_name()}#{self.token}" + (f"/{shard.number}" if shard and shard.number else "")

    def covers(self, subject: str) -> bool:
        """Return whether a subject is in the shard."""
        return self._shard is None or self._shard.covers(subject)

    def recorded(self) -> RecordedOutcomes:
        """Read the record once: ids of all ends, and the intents without an end.

        Filters in Arrow columns, so that a history of years turns only ids into Python objects.
        """
        ends = self._covered(self._table.read(("decision_id", "subject"), [("status", "!=", INTENT)]))
        ended = ends["decision_id"].unique()
        steps = self._table.read(("decision_id", "subject", "attempt", "at"), [("status", "=", INTENT)])
        steps = self._covered(steps.filter(pc.invert(pc.is_in(steps["decision_id"], value_set=ended))))
        begun = steps.group_by("decision_id").aggregate([("at", "min"), ("attempt", "max")])
        columns = (begun[name].to_pylist() for name in ("decision_id", "at_min", "attempt_max"))
        return RecordedOutcomes(
            set(ended.to_pylist()),
            {identity: BegunDecision(*details) for identity, *details in zip(*columns, strict=True)},
        )

    def _covered(self, rows: pa.Table) -> pa.Table:
        """Return the rows of subjects in the shard."""
        if self._shard is None:
            return rows
        mine = [subject for subject in rows["subject"].unique().to_pylist() if self.covers(subject)]
        return rows.filter(pc.is_in(rows["subject"], value_set=pa.array(mine, pa.string())))

    def since(self, first: datetime) -> Recently:
        """Return calls and failures since an instant; a call is dated by the first row that counts it."""
        columns = ("decision_id", "family", "subject", "status", "attempt", "at")
        recent = self._table.read(columns, [("day", ">=", first.date()), ("at", ">=", first)]).sort_by("at")
        rows = [
            row for row in recent.to_pylist() if self.covers(row["subject"]) and row["family"] not in self._elsewhere
        ]
        calls = {(row["decision_id"], row["attempt"]): row for row in reversed(rows) if row["attempt"]}
        return Recently(
            [(row["family"], row["subject"], row["at"]) for row in calls.values()],
            [row["at"] for row in rows if is_failure(row["status"], row["attempt"])],
        )

    def failures_elsewhere(self, first: datetime) -> list[datetime]:
        """Return when decisions of other shards failed, since an instant: the failure limit is fleet-wide."""
        if self._shard is None:
            return []
        columns = ("family", "subject", "status", "attempt", "at")
        rows = self._table.read(columns, [("day", ">=", first.date()), ("at", ">=", first), ("status", "!=", INTENT)])
        return [
            row["at"]
            for row in rows.to_pylist()
            if is_failure(row["status"], row["attempt"])
            and row["family"] not in self._elsewhere
            and not self.covers(row["subject"])
        ]

    def ends(self, decisions: Collection[str]) -> list[RecordedEnd]:
        """Return the newest terminal row of each of these decisions that has ended."""
        return self._ends(("decision_id", "in", list(decisions)))

    def ends_since(self, first: date) -> list[RecordedEnd]:
        """Return the ends of the shard's decisions that ended on a day or later."""
        return [
            end
            for end in self._ends(("day", ">=", first))
            if self.covers(end.subject) and end.family not in self._elsewhere
        ]

    def _ends(self, where: tuple[str, str, Any]) -> list[RecordedEnd]:
        rows = self._table.read(END_COLUMNS, [where, ("status", "!=", INTENT)])
        ends = (read_end(row) for row in rows.sort_by("at").to_pylist())
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
        """Build a row written by this executor."""
        return OutcomeRow(
            decision_id=decision_id,
            family=family,
            subject=subject,
            status=status,
            attempt=attempt,
            at=at,
            layout_epoch=layout_epoch,
            seen=json.dumps(seen or {}, separators=(",", ":")),
            error=error,
            executor=self.executor,
            mode=self._mode,
            day=at.date(),
        )

    def append(self, rows: Sequence[OutcomeRow]) -> None:
        """Append rows in one commit. Raises `LeaseLost`, or Delta's errors: append them again."""
        self._table.append(rows)

    def check_lease(self) -> None:
        """Raise `LeaseLost` if another executor has taken over since."""
        self._table.check()
        if self._shard is not None and self._table.last_token(LEASE) % ROUND:
            raise LeaseLost(
                "an executor of an older release was started on this lake, and knows nothing of shards: stop it; this "
                "one stops now, and shuts it out when it is started again"
            )


def process_name() -> str:
    """Return a name of this process for operators: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def shut_out_older(lake: str) -> None:
    """Make an executor of an older release, with one lease on all, stop. Raises Delta's errors."""
    newest = OpenTable(create_table(lake, OUTCOMES)).newest_transaction(LEASE) or 0
    if newest % ROUND:
        identity = ("decision_id", "status", "attempt", "executor")
        with suppress(LeaseLost):
            LeasedTable(
                lake, OUTCOMES, LEASE, identity, "executor", "applies decisions", newest - newest % ROUND + ROUND
            )
