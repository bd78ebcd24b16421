"""The recorded run, made once for all processes of a test run.

`ANABRANCH_REAL_LAKE=FOLDER` keeps it in a folder of its own, and takes it from there the next time: for
work on the tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from anabranch.local.setup import Jars
from tests.reallake.raw import Raw
from tests.reallake.recording import Recording, load_recording, record


@pytest.fixture(scope="session")
def real_lake(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The recording; tests leave its folder as it is."""
    kept = os.environ.get("ANABRANCH_REAL_LAKE")
    base = tmp_path_factory.getbasetemp()
    # With xdist each process has a folder of its own in that of the test run.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(kept) if kept else shared / "Real-Lake"  # upper case: sockets once could not be below such a folder
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        return load_recording(folder) if (folder / "recording.json").is_file() else record(folder)


@pytest.fixture(scope="session")
def raw(real_lake: Recording) -> Raw:
    """The rows of its tables as they are in the files."""
    return Raw(real_lake.lake)
