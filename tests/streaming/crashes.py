"""Crash points of the job: named places in a batch where a test raises an exception or kills a process.

`batch:begin` is before anything of a batch, with the batch before it in Spark's commit log; `output:before` is before
the first commit, when what the workers write as files is written; `TABLE:before` and `TABLE:after` are around the
commit to a table, in a batch that has rows for it. All are in a batch that is not the first of its start, so that every
start also completes one. Tables between `decisions` and `batches` are committed side by side: at a point of one of
them, the others may be committed or not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.tables.rows import BATCHES, DEAD_LETTERS, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD
from streaming.operator.processor import BucketProcessor
from streaming.sink.sink import LakeSink

SINK_POINTS = [
    "batch:begin",
    "output:before",
    *(
        f"{table.name}:{when}"
        for table in (DECISIONS, HOLDS, EVENTS, DEAD_LETTERS, SEGMENT_LOAD, BATCHES)
        for when in ("before", "after")
    ),
]
"""Every point in the sink, in the order in which a batch comes to them."""


class Crashed(Exception):
    """Raised at a crash point instead of a kill."""


def raise_crash(point: str) -> None:
    raise Crashed(f"crashed at {point}")


def crashing_sink(point: str, crash: Callable[[str], None] = raise_crash) -> type[LakeSink]:
    """A sink that crashes at a point."""
    chosen, _, when = point.partition(":")

    class CrashingSink(LakeSink):
        written = 0

        def write(self, frame, batch_id):
            with self.crashing("batch"):
                super().write(frame, batch_id)
            self.written += 1

        def _commit(self, table, rows, query, batch_id):
            with self.crashing("output" if table is DECISIONS else "nothing"):
                pass
            with self.crashing(table.name if len(rows) else "nothing"):
                super()._commit(table, rows, query, batch_id)

        @contextmanager
        def crashing(self, place: str) -> Iterator[None]:
            now = self.written and place == chosen
            if now and when in ("before", "begin"):
                crash(point)
            yield
            if now and when == "after":
                crash(point)

    return CrashingSink


def crashing_processor(checkpoint: Path, how: str) -> type[BucketProcessor]:
    """An operator that crashes once it has changed a bucket's state: its Python worker `raises` or is `killed`."""
    commits = str(checkpoint / "commits")
    before = sum(name.isdigit() for name in os.listdir(commits)) if os.path.isdir(commits) else 0

    # Local, so that it travels to the workers by value: they do not know the tests.
    class CrashingProcessor(BucketProcessor):
        def handleInputRows(self, key, rows, timerValues) -> Iterator:
            yield from super().handleInputRows(key, rows, timerValues)
            if os.path.isdir(commits) and sum(name.isdigit() for name in os.listdir(commits)) > before:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("crashed in the operator")

    return CrashingProcessor
