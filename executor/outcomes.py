"""Rows of the `outcomes` table, and the lease that lets exactly one executor write them.

Stage: between what happens in memory (`attempt.Ended`, …) and what is on record. The lease is a Delta app transaction
(`APP`, token): an executor that starts takes the next token, and every commit carries it. Two commits of one app
transaction conflict in Delta, so an executor that was overtaken cannot add a row, whatever it believes; it finds the
newer token and stops.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from lake.tables import OpenTable, create_table
from schemas.arrow import arrow_schema, to_arrow
from schemas.tables import OUTCOMES, OutcomeRow

log = logging.getLogger(__name__)

APP = "executor-lease"
INTENT = "intent"
_RACES = 100


class LeaseLost(RuntimeError):
    """Another executor has taken over; this one must do nothing more."""


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
    subject: str
    status: str
    error: str | None
    at: datetime


@dataclass
class History:
    """What was on record when the lease was taken."""

    ended: set[str] = field(default_factory=set)
    """Ids of the decisions with a terminal row."""
    begun: dict[str, Begun] = field(default_factory=dict)
    newest: dict[str, RecordedEnd] = field(default_factory=dict)
    """The newest terminal row of each subject."""


class OutcomeLedger:
    """The `outcomes` table of a lake, made if it is missing. One thread uses it."""

    def __init__(self, lake: str, mode: str) -> None:
        """Takes the lease: from here on any older executor is shut out. Raises what Delta raises."""
        self._open = OpenTable(create_table(lake, OUTCOMES))
        self._table = self._open.newest()
        self._mode = mode
        self._unsure_from: int | None = None
        self.token = self._take_lease()
        self.executor = f"{socket.gethostname()}:{os.getpid()}#{self.token}"

    def history(self) -> History:
        """All that is on record, read once."""
        columns = ["decision_id", "subject", "status", "attempt", "error", "at"]
        found = self._table.to_pyarrow_table(columns=columns)
        history = History()
        for decision, subject, status, calls, error, at in zip(*(found[c].to_pylist() for c in columns), strict=True):
            if status == INTENT:
                known = history.begun.get(decision, Begun(at, calls))
                history.begun[decision] = Begun(min(at, known.at), max(calls, known.calls))
                continue
            history.ended.add(decision)
            newest = history.newest.get(subject)
            if newest is None or newest.at <= at:
                history.newest[subject] = RecordedEnd(decision, subject, status, error, at)
        for decision in history.ended:
            history.begun.pop(decision, None)
        return history

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
        seen: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> OutcomeRow:
        """A row of this executor."""
        return OutcomeRow(
            decision_id=decision_id, family=family, subject=subject, status=status, attempt=attempt, at=at,
            layout_epoch=layout_epoch, seen=json.dumps(seen or {}, separators=(",", ":")), error=error,
            executor=self.executor, mode=self._mode, day=at.date(),
        )  # fmt: skip

    def append(self, rows: list[OutcomeRow]) -> None:
        """One commit with all rows. Raises `LeaseLost`, or what Delta raises: then the steps can be given again."""
        self.check_lease()
        version = self._table.version()
        if self._unsure_from is not None:
            rows = self._not_yet_recorded(rows, self._unsure_from, version)
        if rows:
            try:
                write_deltalake(
                    self._table, to_arrow(OUTCOMES, rows), mode="append", commit_properties=self._carrying(self.token)
                )
            except BaseException:
                # A commit may have been made although it reported a fault: look before it is made again.
                self._unsure_from = version + 1 if self._unsure_from is None else self._unsure_from
                self.check_lease()
                raise
        self._unsure_from = None

    def check_lease(self) -> None:
        """Raises `LeaseLost` when another executor has started since."""
        self._table = self._open.newest()
        newest = self._table.transaction_version(APP)
        if newest != self.token:
            raise LeaseLost(
                f"another executor has taken over this lake: it holds lease token {newest}, this one had {self.token}. "
                "Only one executor applies decisions; stop the other one if this one is meant"
            )

    def _take_lease(self) -> int:
        for _ in range(_RACES):
            self._table = self._open.newest()
            token = (self._table.transaction_version(APP) or 0) + 1
            try:
                write_deltalake(
                    self._table,
                    arrow_schema(OUTCOMES.row).empty_table(),
                    mode="append",
                    commit_properties=self._carrying(token),
                )
            except CommitFailedError as error:
                log.info("lease token %d was taken by another executor that starts now: %s", token, error)
            else:
                return token
        raise LeaseLost(f"no lease on {self._table.table_uri} in {_RACES} attempts: too many executors start at once")

    def _not_yet_recorded(self, rows: list[OutcomeRow], first: int, last: int) -> list[OutcomeRow]:
        if first > last:
            return rows
        found = pa.table(self._table.load_cdf(starting_version=first, ending_version=last))
        names = ("decision_id", "status", "attempt", "executor")
        recorded = set(zip(*(found[name].to_pylist() for name in names), strict=True))
        return [row for row in rows if tuple(getattr(row, name) for name in names) not in recorded]

    @staticmethod
    def _carrying(token: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(APP, token)])
