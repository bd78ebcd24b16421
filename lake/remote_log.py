"""Log of a table, read by commit: cheap checks for a next one in an object store, transactions, lost answers.

Stage: under `lake.tables.OpenTable`.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler

from lake.files import is_remote

FULL_LOOK_SECONDS = 300.0
"""Longest time between looks by delta-rs: a log that was cleaned meanwhile lacks the next commit."""
FOLLOWED = 10
"""Most commits that are read one by one; more are left to delta-rs."""
_MARK = "anabranch-commit"
"""Key of a commit's metadata: an id by which its writer knows it again."""


class RemoteLog:
    """The log of one table."""

    def __init__(self, table: DeltaTable) -> None:
        """Reach the log."""
        self._store, self._is_remote = DeltaStorageHandler(table.table_uri), is_remote(table.table_uri)
        self.note_look()

    def note_look(self) -> None:
        """Note that delta-rs has looked, or opened the table."""
        self._full_look_at = _clock() + FULL_LOOK_SECONDS

    def ends_with(self, version: int) -> bool:
        """Return True if no commit follows `version`; False if one does, or if delta-rs has to look.

        One HEAD request. To see that nothing has changed delta-rs lists the log and asks for a checkpoint, at thirteen
        times the price.
        """
        if not self._is_remote or _clock() >= self._full_look_at:
            return False
        try:
            self._store.open_input_file(_commit_file(version + 1))
        except FileNotFoundError:
            return True
        except OSError:
            # The look that follows says what is wrong.
            return False
        return False

    def transactions_of(self, first: int, last: int) -> dict[str, int] | None:
        """Return the newest transactions in these commits; None if there are many, or one cannot be read."""
        if last - first >= FOLLOWED:
            return None
        numbers = dict[str, int]()
        for version in range(first, last + 1):
            try:
                for line in self._store.open_input_file(_commit_file(version)).read().splitlines():
                    if line.startswith(b'{"txn"'):
                        transaction = json.loads(line)["txn"]
                        numbers[transaction["appId"]] = transaction["version"]
            except (OSError, ValueError, KeyError):
                return None
        return numbers

    @contextmanager
    def committing(self, table: DeltaTable, transactions: Mapping[str, int]) -> Iterator[CommitProperties]:
        """Yield the properties of a commit of `table`; one that failed but is in the log has not failed.

        If a stored put is answered with 5xx, delta-rs (1.6) puts again, is told that the version exists, and takes its
        own commit for one of another writer. After a time-out or a reset connection it does not put again.
        """
        numbered = [Transaction(*transaction) for transaction in transactions.items()]
        if not self._is_remote:
            yield CommitProperties(app_transactions=numbered)
            return
        mark, before = uuid4().hex, table.version()
        try:
            yield CommitProperties(custom_metadata={_MARK: mark}, app_transactions=numbered)
        except (CommitFailedError, OSError):
            table.update_incremental()
            commits = table.history(table.version() - before) if table.version() > before else []
            if mark not in [commit.get(_MARK) for commit in commits]:
                raise


def _commit_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _clock() -> float:
    """Return seconds of a clock that goes on while the machine is suspended: the log is cleaned meanwhile."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
