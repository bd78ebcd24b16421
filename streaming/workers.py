"""The process that forks Spark's Python workers, with the modules of the job's stage loaded before it forks.

Stage: `spark.python.daemon.module` of conf/spark.conf. Otherwise each worker would import these modules again at its
first task. The workers of the state stage are `streaming.holders`, if Spark speaks to them by Unix sockets.
"""

from __future__ import annotations

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
    # Spark puts a zip of its own first, which has no compiled modules: every start would compile them, for 0.7 s.
    sys.path = [folder for folder in sys.path if not folder.endswith("pyspark.zip")]

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager, worker
from pyspark.util import enable_faulthandler

from streaming.holders import manage, speaks_by_unix_sockets

STAGE_VARIABLE = "ANABRANCH_STAGE"
"""By its value Spark keeps the workers of one stage from the other."""
DECODE, STATE = "decode", "state"
_DECODED_OBJECTS = 100_000
_MODULES = {
    DECODE: ("engine.families",),
    STATE: (
        "streaming.processor",
        "streaming.bucket_task",
        "pyspark.sql.streaming.proto.StateMessage_pb2",
        "pyspark.testing.utils",
    ),
}


class _WithoutPandas:
    """An import finder that hides pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def load_without_pandas(modules: Sequence[str]) -> None:
    """Imports modules, with pandas hidden from them and from Arrow.

    Arrow looks for it at the first array that it makes of Python objects, and what Spark's state client asks for the
    name of one variable (`pyspark.testing.utils`) does where it is imported; both remember. Importing it takes 0.3 s to
    2 s and 60 MB, for each worker, and nothing in the workers uses it.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
        for name in modules:
            importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


def state_task(connection: socket.socket, authenticated: bool) -> int:
    """A task of the state stage, in the process of its partition."""
    with enable_faulthandler():
        return worker(connection, authenticated)


def main() -> None:
    """The daemon of a stage, until Spark ends it."""
    stage = os.environ.get(STAGE_VARIABLE, "")
    load_without_pandas(_MODULES.get(stage, ()))
    # After each task a worker collects cycles: for 45 ms, if it looks at what was loaded before the fork, too.
    gc.collect()
    gc.freeze()
    if stage == DECODE:
        # Decoding makes many objects and no cycles, but for the errors of bad messages.
        gc.set_threshold(_DECODED_OBJECTS)
    if stage == STATE and speaks_by_unix_sockets():
        manage(state_task)
    manager()


if __name__ == "__main__":
    main()
