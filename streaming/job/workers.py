"""Daemon that forks Spark's Python workers, with the stage's modules already loaded.

Stage: `spark.python.daemon.module` of conf/spark.conf. Otherwise each worker would import these modules again at its
first task. Workers of the state stage are `streaming.job.holders`, if Spark uses Unix sockets.
"""

import gc
import importlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute

if any(Path(folder, "pyspark").is_dir() for folder in sys.path):
    # Spark puts its own zip first, without compiled modules: every start would compile them, for 0.7 s.
    sys.path = [folder for folder in sys.path if not folder.endswith("pyspark.zip")]

import pyspark.daemon
import pyspark.worker
from pyspark.daemon import manager, worker
from pyspark.util import enable_faulthandler

from runtime.hidden_packages import HiddenPackages
from streaming.job.holders import manage_tasks, speaks_by_unix_sockets

STAGE_VARIABLE = "ANABRANCH_STAGE"
"""Environment variable by which Spark keeps the workers of the stages apart."""
DECODE, STATE = "decode", "state"
_DECODED_OBJECTS = 100_000
_MODULES = {
    DECODE: ("engine.families",),
    STATE: (
        "streaming.operator.processor",
        "streaming.operator.bucket_task",
        "pyspark.sql.streaming.proto.StateMessage_pb2",
        "pyspark.testing.utils",
    ),
}


def load_without_pandas(modules: Sequence[str]) -> None:
    """Import modules with pandas hidden from them and from Arrow.

    Spark's state client imports it for one name (`pyspark.testing.utils`), and remembers the result as Arrow does.
    """
    finder = HiddenPackages({"pandas"})
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
        for name in modules:
            importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


def run_worker(connection: socket.socket, authenticated: bool) -> int:
    """Run Spark's worker and return its exit code; 1 if Spark has closed the connection, as at its end.

    Spark's own daemon would print a traceback then.
    """
    try:
        return int(worker(connection, authenticated))
    except BrokenPipeError:
        return 1


def state_task(connection: socket.socket, authenticated: bool) -> int:
    """Run a task of the state stage, in the process of its partition."""
    with enable_faulthandler():
        return run_worker(connection, authenticated)


def main() -> None:
    """Run the daemon of a stage until Spark ends it."""
    stage = os.environ.get(STAGE_VARIABLE, "")
    load_without_pandas(_MODULES.get(stage, ()))
    # A worker collects cycles after each task: 45 ms if modules loaded before the fork are included.
    gc.collect()
    gc.freeze()
    if stage == DECODE:
        # Decoding creates many objects and no cycles, except for the errors of bad messages.
        gc.set_threshold(_DECODED_OBJECTS)
    if stage == STATE and speaks_by_unix_sockets():
        manage_tasks(state_task)
    pyspark.daemon.worker = run_worker
    manager()


if __name__ == "__main__":
    main()
