"""The real job, made to kill itself and its JVM with SIGKILL around a chosen Delta commit.

`python -m tests.streaming.crashing_job SETTINGS TABLE before|after BATCHES`: at the commit to TABLE in the first batch
that writes to it after BATCHES batches have gone through.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from schemas.settings import load_settings
from schemas.tables import SEGMENT_LOAD
from streaming.job import run_job
from streaming.sink import LakeSink


def main() -> None:
    """Runs until it kills its process group."""
    file, table_name, when, batches = sys.argv[1:]
    commit, write_bulk, write, seen = LakeSink._commit, LakeSink._write_bulk_by_spark, LakeSink.write, [0]

    def counted(sink, frame, batch_id):
        write(sink, frame, batch_id)
        seen[0] += 1

    def crash_around(chosen, step):
        if chosen and when == "before":
            os.killpg(0, signal.SIGKILL)
        step()
        if chosen:
            os.killpg(0, signal.SIGKILL)

    def crashing(sink, table, rows, query, batch_id):
        chosen = table.name == table_name and rows.num_rows and seen[0] >= int(batches)
        crash_around(chosen, lambda: commit(sink, table, rows, query, batch_id))

    def crashing_bulk(sink, frame, query, batch_id):
        chosen = table_name == SEGMENT_LOAD.name and seen[0] >= int(batches)
        crash_around(chosen, lambda: write_bulk(sink, frame, query, batch_id))

    LakeSink.write, LakeSink._commit = counted, crashing  # type: ignore[method-assign]
    LakeSink._write_bulk_by_spark = crashing_bulk  # type: ignore[method-assign]
    run_job(load_settings([Path(file)]), threading.Event())


if __name__ == "__main__":
    main()
