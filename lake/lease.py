"""The lease on rows of a table that only one process may write: the last one that took it.

Stage: under `anabranch.executor.kernel.outcomes`. The lease is a Delta app transaction (name, token): a process that
starts takes the next token, or uses one assigned elsewhere, and every commit carries it. Two commits of one app
transaction conflict in Delta, so an overtaken process cannot add a row: it finds the newer token and stops.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from lake.files import read_table
from lake.tables import OpenTable, create_table
from lake.tail import committed_rows
from schemas.tables.arrow import arrow_schema, to_arrow
from schemas.tables.rows import Table, TableRow

MAX_RACES = 100
"""Attempts to take a lease while others take it."""
MAX_DELAY_SECONDS = 0.02
"""Longest delay before another attempt, seconds; random, so that simultaneous starts spread out."""


class LeaseLost(RuntimeError):
    """Another process has taken over; this one must do nothing more."""


class LeasedTable:
    """A table of the lake, created if missing, with the lease on it. For one thread."""

    def __init__(
        self,
        lake: str,
        table: Table,
        app: str,
        identity: Sequence[str],
        holder: str,
        work: str,
        token: int | None = None,
    ) -> None:
        """Take the lease, which excludes any older holder. Raises `LeaseLost`, or what Delta raises.

        `app` names the lease in the table's log. The columns of `identity` distinguish the rows of one holder.
        `holder` and `work` are for messages: "executor", "applies decisions". `token`: an assigned token; None: the
        next one.
        """
        self._table, self._app, self._identity, self._holder, self._work = table, app, tuple(identity), holder, work
        self._open = OpenTable(create_table(lake, table))
        self._unsure_from: int | None = None
        self.token = self._take(token)

    def read(self, columns: Sequence[str], where: Sequence[tuple[str, str, Any]] | None = None) -> pa.Table:
        """Return all rows, or those of some conditions (column, operator, value), cut to some columns."""
        return read_table(self._open.newest(), columns, where)

    def append(self, rows: Sequence[TableRow]) -> None:
        """Commit all rows at once. Raises `LeaseLost`, or what Delta raises, after which it may be retried."""
        self.check()
        version = self._open.table.version()
        if self._unsure_from is not None:
            rows = self._not_yet_recorded(rows, self._unsure_from, version)
        if rows:
            try:
                self._open.append(to_arrow(self._table, rows), self._app, self.token)
            except BaseException:
                # The commit may exist despite the error: look before repeating it.
                self._unsure_from = version + 1 if self._unsure_from is None else self._unsure_from
                self.check()
                raise
        self._unsure_from = None

    def check(self) -> None:
        """Raise `LeaseLost` if another process has taken the lease since."""
        newest = self._open.newest_transaction(self._app)
        if newest != self.token:
            raise LeaseLost(
                f"another {self._holder} has taken over this lake: it holds lease token {newest}, this one had "
                f"{self.token}. Only one {self._holder} {self._work}; stop the other one if this one is meant"
            )

    def last_token(self, app: str) -> int:
        """Return the newest token of another lease on the table, as last read; 0 if there is none."""
        return self._open.transactions_as_read(app)[0] or 0

    def _take(self, token: int | None) -> int:
        retrying = Retrying(
            retry=retry_if_exception_type(CommitFailedError),
            stop=stop_after_attempt(MAX_RACES),
            wait=wait_random(0, MAX_DELAY_SECONDS),
        )
        try:
            return retrying(self._take_next, token)
        except RetryError as error:
            where = self._open.table.table_uri
            raise LeaseLost(
                f"no lease on {where} in {MAX_RACES} attempts: too many {self._holder}s start at once"
            ) from error

    def _take_next(self, wanted: int | None) -> int:
        newest = self._open.newest_transaction(self._app) or 0
        token = newest + 1 if wanted is None else wanted
        if newest >= token:
            raise LeaseLost(f"another {self._holder} has taken over: it holds lease token {newest}, this one {token}")
        self._open.append(arrow_schema(self._table.row).empty_table(), self._app, token)
        return token

    def _not_yet_recorded(self, rows: Sequence[TableRow], first: int, last: int) -> list[TableRow]:
        committed = committed_rows(self._open.table, first, last, columns=self._identity) if first <= last else []
        recorded = {tuple(row[name] for name in self._identity) for row in committed}
        return [row for row in rows if tuple(getattr(row, name) for name in self._identity) not in recorded]
