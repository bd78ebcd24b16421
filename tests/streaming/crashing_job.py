"""The real job, made to lose a process of its own to SIGKILL at a chosen point.

`python -m tests.streaming.crashing_job SETTINGS POINT VICTIM`: at POINT in a batch after the first that this start has
gone through. All rows are in files that the workers write. POINT is one of `tests.streaming.crashes`, `state-upload`
(the changes of the state stand in the checkpoint) or `commit-log` (Spark has called the batch done). VICTIM is `all`,
`driver`, `jvm`, or `manager`: the processes that hold the state end with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
from pyspark import SparkContext

import streaming.job.job
from anabranch.cli.main import main as run_command
from schemas.settings.root import load_settings
from streaming.job.workers import STAGE_VARIABLE, STATE
from streaming.operator.processor import BucketProcessor
from streaming.sink.sink import LakeSink
from tests.streaming.crashes import crashing_sink
from tests.waiting import wait_until


def kill(victim: str) -> None:
    """SIGKILL to this process and its JVM at once, or to one of them."""
    if victim == "all":
        os.killpg(0, signal.SIGKILL)
    jvm = SparkContext._gateway.proc.pid
    if victim == "manager":
        for process in psutil.Process(jvm).children():
            if process.environ().get(STAGE_VARIABLE) == STATE:
                process.kill()
    else:
        os.kill(os.getpid() if victim == "driver" else jvm, signal.SIGKILL)


def sink_before_new_file(files: str, checkpoint: Path, victim: str) -> type[LakeSink]:
    """Kills as soon as the checkpoint has a new file of a pattern, from the second batch on."""
    began = threading.Event()

    class ToldSink(LakeSink):
        def write(self, frame, batch_id):
            super().write(frame, batch_id)
            began.set()

    def watch() -> None:
        began.wait()
        before = set(checkpoint.glob(files))
        wait_until(lambda: not set(checkpoint.glob(files)) <= before, 170, 0.0005)
        kill(victim)

    threading.Thread(target=watch, daemon=True).start()
    return ToldSink


def main() -> None:
    """Runs `anabranch serve stream` until the point is reached; ends as that ends."""
    file, point, victim = sys.argv[1:]
    checkpoint = Path(load_settings([Path(file)]).stream.checkpoint)
    if point == "state-upload":
        sink = sink_before_new_file("state/0/[0-9]*/[0-9]*.changelog", checkpoint, victim)
    elif point == "commit-log":
        sink = sink_before_new_file("commits/[0-9]*", checkpoint, victim)
    else:
        sink = crashing_sink(point, lambda _: kill(victim))
    streaming.job.job.BucketProcessor = partial(BucketProcessor, inline_bytes=0)  # type: ignore[assignment, misc]
    streaming.job.job.run_job = partial(streaming.job.job.run_job, sink_type=sink)  # type: ignore[assignment]
    sys.argv[1:] = ["--config", file, "stream"]
    run_command()


if __name__ == "__main__":
    main()
