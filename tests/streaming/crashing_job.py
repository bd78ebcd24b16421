"""The real job, made to lose a process of its own to SIGKILL at a chosen point.

`python -m tests.streaming.crashing_job SETTINGS POINT VICTIM`: at POINT in a batch after the first that this start has
gone through. POINT is `TABLE:before` or `TABLE:after` a Delta commit, `state-upload` (one partition's changes stand in
the checkpoint, those of the other may not), `commit-log` (Spark has called the batch done) or `operator` (in a Python
worker). VICTIM is `all`, `driver`, `jvm`, or `worker` at `operator`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext

import streaming.job
from anabranch.cli import main as run_command
from schemas.settings import load_settings
from schemas.tables import SEGMENT_LOAD
from streaming.processor import BucketProcessor
from streaming.sink import LakeSink


def kill(victim: str) -> None:
    """SIGKILL to this process and its JVM at once, or to one of them."""
    if victim == "all":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid() if victim == "driver" else SparkContext._gateway.proc.pid, signal.SIGKILL)


def crash_around_commits(table_name: str, when: str, victim: str) -> None:
    """Kills before or after the commit to a table, in the first batch that writes to it and is not the first."""
    commit, write_bulk, write, seen = LakeSink._commit, LakeSink._write_bulk_by_spark, LakeSink.write, [0]

    def counted(sink, frame, batch_id):
        write(sink, frame, batch_id)
        seen[0] += 1

    def crash_around(chosen, step):
        chosen = chosen and seen[0]
        if chosen and when == "before":
            kill(victim)
        step()
        if chosen and when == "after":
            kill(victim)

    def crashing(sink, table, rows, query, batch_id):
        chosen = table.name == table_name and rows.num_rows
        crash_around(chosen, lambda: commit(sink, table, rows, query, batch_id))

    def crashing_bulk(sink, frame, query, batch_id):
        crash_around(table_name == SEGMENT_LOAD.name, lambda: write_bulk(sink, frame, query, batch_id))

    LakeSink.write, LakeSink._commit = counted, crashing  # type: ignore[method-assign]
    LakeSink._write_bulk_by_spark = crashing_bulk  # type: ignore[method-assign]


def crash_at_new_file(files: str, checkpoint: Path, victim: str) -> None:
    """Kills as soon as the checkpoint has a new file of a pattern, from the second batch on."""
    began, write = threading.Event(), LakeSink.write

    def told(sink, frame, batch_id):
        write(sink, frame, batch_id)
        began.set()

    def watch() -> None:
        began.wait()
        before = set(checkpoint.glob(files))
        while set(checkpoint.glob(files)) <= before:
            time.sleep(0.0005)
        kill(victim)

    LakeSink.write = told  # type: ignore[method-assign]
    threading.Thread(target=watch, daemon=True).start()


class DyingProcessor(BucketProcessor):
    """Kills its own worker, once it has changed the state of one bucket in a batch that is not the first."""

    def handleInputRows(self, key, rows, timerValues) -> Iterator:
        yield from super().handleInputRows(key, rows, timerValues)
        commits = Path(os.environ["CHECKPOINT"]) / "commits"
        if len(list(commits.glob("[0-9]*"))) > int(os.environ["COMMITS_BEFORE"]):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Runs `anabranch stream` until the point is reached; ends as that ends."""
    file, point, victim = sys.argv[1:]
    checkpoint = Path(load_settings([Path(file)]).stream.checkpoint)
    if point == "operator":
        os.environ["CHECKPOINT"] = str(checkpoint)
        os.environ["COMMITS_BEFORE"] = str(len(list((checkpoint / "commits").glob("[0-9]*"))))
        streaming.job.BucketProcessor = DyingProcessor  # type: ignore[misc]
    elif point == "state-upload":
        crash_at_new_file("state/0/[0-9]*/[0-9]*.changelog", checkpoint, victim)
    elif point == "commit-log":
        crash_at_new_file("commits/[0-9]*", checkpoint, victim)
    else:
        crash_around_commits(*point.split(":"), victim)
    sys.argv[1:] = ["--config", file, "stream"]
    run_command()


if __name__ == "__main__":
    main()
