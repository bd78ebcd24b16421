"""The process that forks Spark's Python workers, with the modules of the job's stage loaded before it forks.

Stage: `spark.python.daemon.module` of conf/spark.conf. Otherwise each worker would import these modules again at its
first task.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute

if any(Path(folder, "pyspark").is_dir() for folder in sys.path):
    # Spark puts a zip of its own first, which has no compiled modules: every start would compile them, for 0.7 s.
    sys.path = [folder for folder in sys.path if not folder.endswith("pyspark.zip")]

from pyspark import worker  # noqa: F401
from pyspark.daemon import manager

STAGE_VARIABLE = "ANABRANCH_STAGE"
"""By its value Spark keeps the workers of one stage from the other."""
_MODULES = {
    "decode": ("engine.families",),
    "state": ("streaming.processor", "pyspark.sql.streaming.proto.StateMessage_pb2"),
}


class _WithoutPandas:
    """An import finder that hides pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_arrow_from_pandas() -> None:
    """Hides pandas from Arrow.

    It looks for it at the first array that it makes of Python objects, and remembers; importing it takes 2 s and 60 MB,
    and nothing in the workers uses it.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


if __name__ == "__main__":
    keep_arrow_from_pandas()
    for name in _MODULES.get(os.environ.get(STAGE_VARIABLE, ""), ()):
        importlib.import_module(name)
    # After each task a worker collects cycles, for 45 ms: of what was loaded before the fork, there are none.
    gc.collect()
    gc.freeze()
    manager()
