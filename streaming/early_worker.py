"""The Python that Spark starts before a query's first batch, to ask which state variables there are.

Stage: planning, beside the driver. Spark waits ten seconds for this process to connect, a limit that no setting
changes; then it removes the socket and fails the query. Importing PySpark takes 0.2 s of processor time, and five times
as much from the zip that Spark puts first on the path: on two cores with a load of 26 that is longer than ten seconds.
So this module connects first, and imports then without the zip. `start_session` makes Spark start it.
"""

from __future__ import annotations

import os
import shlex
import socket
import struct
import sys
from pathlib import Path

SPARKS_WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
_SOCKET_VARIABLE = "PYTHON_WORKER_FACTORY_SOCK_PATH"


def write_launcher(folder: Path, python: str) -> str:
    """Write a Python command that starts this module where Spark asks for its own; return what Spark should start.

    Without Unix sockets it starts what Spark asks for, as it does all else. Where nothing in the folder can be
    executed, return the plain Python.
    """
    launcher = folder / "python"
    launcher.write_text(
        f'#!/bin/sh\nif [ "$2" = {SPARKS_WORKER} ] && [ -n "${_SOCKET_VARIABLE}" ]; then set -- -m {__name__}; fi\n'
        f'exec {shlex.quote(python)} "$@"\n'
    )
    launcher.chmod(0o700)
    return str(launcher) if os.access(launcher, os.X_OK) else python


def main() -> None:
    """Connect, and be Spark's own worker."""
    # Unlike Spark's own it waits for the driver without a limit: a driver that is gone closes the connection.
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[_SOCKET_VARIABLE])
    with connection.makefile("rwb") as file:
        file.write(struct.pack(">i", os.getpid()))
        file.flush()
        sys.path = [folder for folder in sys.path if not folder.endswith("pyspark.zip")]
        from pyspark.sql.streaming.transform_with_state_driver_worker import main as answer

        answer(file, file)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
