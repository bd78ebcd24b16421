"""Keeps the tables of a running writer cheap to commit to: forgets their old logs, and compacts small files.

Stage: beside the job and beside an executor, in a thread of its own, off the way of any decision. A commit takes longer
with every file that its table has: some 4 µs (delta-rs 1.6, two cores). It took 9 µs more for every file of the log,
when each commit looked for those that are too old; that is done here now (`lake.tables.HOOKS`).
Days that have many small files are compacted, some of them in one look (`lake.compaction`), safely at any moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from deltalake.exceptions import DeltaError

from lake.compaction import compact, groups, small_files
from lake.tables import open_table
from schemas.tables import Table

log = logging.getLogger(__name__)

MANY_FILES = 100
"""A day with as many small files is compacted."""
MAX_BYTES = 256 * 2**20
"""Of files that one look reads and writes again; the rest has to wait for the next."""
LOOK_MINUTES = 10.0
"""Between two looks where nothing is to be compacted."""


class Upkeep:
    """The upkeep of some tables of a lake while its context is open."""

    def __init__(self, lake: str, tables: Sequence[Table], minutes: float) -> None:
        """`minutes`: between two looks; 0: nothing is compacted, only logs are forgotten when their time is over."""
        self._lake, self._tables, self._compacts = lake, tables, minutes > 0
        self._seconds = 60 * (minutes or LOOK_MINUTES)
        self._files: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    @property
    def files(self) -> Mapping[str, int]:
        """Files of each table, by its name, as of the last look; tables that could not be read are left out."""
        return dict(self._files)

    def __enter__(self) -> Upkeep:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A pass under way may be cut off by the end of the process like by any kill.
        self._stop.set()

    def look(self, compacts: bool) -> None:
        """One look at every table. Raises nothing: whatever fails is tried again at the next look."""
        for table in self._tables:
            if self._stop.is_set():
                return
            try:
                self._look_at(table, compacts)
            except (DeltaError, OSError) as error:
                log.info("the upkeep of %s waits for the next look: %s", table.name, str(error).splitlines()[0])

    def _run(self) -> None:
        # A start has better things to do than to compact.
        self.look(compacts=False)
        while not self._stop.wait(self._seconds):
            self.look(self._compacts)

    def _look_at(self, table: Table, compacts: bool) -> None:
        delta = open_table(self._lake, table)
        if delta is None:
            return
        delta.cleanup_metadata()
        for group in groups(small_files(delta), MANY_FILES, MAX_BYTES) if compacts else []:
            if self._stop.is_set() or not compact(self._lake, table, delta, group):
                break
            log.info("%s: %d small files of %s became one", table.name, len(group), group[0].day)
        self._files[table.name] = len(delta.file_uris())
