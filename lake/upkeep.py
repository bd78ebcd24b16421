"""Background maintenance of a running writer's tables: removes old logs and compacts small files.

Stage: beside the job and beside an executor, in its own thread, off the path of decisions. A commit takes some 4 µs
longer per file of its table (delta-rs 1.6, two cores), and took 9 µs more per log file when each commit looked for
expired ones; that is done here instead (`lake.tables.HOOKS`). Days with many small files are compacted, some per
pass (`lake.compaction`), safely at any moment.
"""

import logging
import threading
from collections.abc import Mapping, Sequence

from deltalake.exceptions import DeltaError

from lake.compaction import compact_group, group_files, small_files
from lake.tables import open_table
from schemas.tables.rows import Table

log = logging.getLogger(__name__)

MANY_FILES = 100
"""Number of small files from which a day is compacted."""
MAX_BYTES = 256 * 2**20
"""Size of the files rewritten in one pass; others wait for the next."""
LOOK_MINUTES = 10.0
"""Minutes between two passes when compaction is off."""


class Upkeep:
    """Maintenance of some tables of a lake while its context is open."""

    def __init__(self, lake: str, tables: Sequence[Table], minutes: float) -> None:
        """Create the thread; `minutes` between two passes; 0: only expire logs, never compact."""
        self._lake, self._tables, self._compacts = lake, tables, minutes > 0
        self._seconds = 60 * (minutes or LOOK_MINUTES)
        self._files: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    @property
    def files(self) -> Mapping[str, int]:
        """Number of files of each table at the last pass, by name; without unreadable tables."""
        return dict(self._files)

    def __enter__(self) -> "Upkeep":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Process exit may interrupt a pass, which is as safe as a kill.
        self._stop.set()

    def look(self, compacts: bool) -> None:
        """Process every table once. Never raises: a failure is retried at the next pass."""
        for table in self._tables:
            if self._stop.is_set():
                return
            try:
                self._look_at(table, compacts)
            except (DeltaError, OSError) as error:
                log.info("the upkeep of %s waits for the next look: %s", table.name, str(error).splitlines()[0])

    def _run(self) -> None:
        # Do not compact at startup, when other work matters more.
        self.look(compacts=False)
        while not self._stop.wait(self._seconds):
            self.look(self._compacts)

    def _look_at(self, table: Table, compacts: bool) -> None:
        if (delta := open_table(self._lake, table)) is None:
            return
        delta.cleanup_metadata()
        for group in group_files(small_files(delta), MANY_FILES, MAX_BYTES) if compacts else []:
            if self._stop.is_set() or not compact_group(self._lake, table, delta, group):
                break
            log.info("%s: %d small files of %s became one", table.name, len(group), group[0].day)
        self._files[table.name] = len(delta.file_uris())
