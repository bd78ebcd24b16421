"""The Python process that Spark starts before a query's first batch to list the state variables.

Stage: planning, beside the driver. Spark waits ten seconds for this process to connect, a limit that no setting
changes; then it removes the socket and fails the query. Importing PySpark takes 0.2 s of processor time, and five
times as much from the zip that Spark puts first on the path: on two cores with a load of 18 that took 15 s. So this
file connects first, and then imports without the zip. `start_session` makes Spark start it.
"""

import sys

if __name__ == "__main__":
    # Run as a file, without `site`: even looking for a module in the zips, or in this file's folder, costs time.
    sys.path = [entry for entry in sys.path[1:] if not entry.endswith(("pyspark.zip", "-src.zip"))]

import os

SPARKS_WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
_SOCKET_VARIABLE = "PYTHON_WORKER_FACTORY_SOCK_PATH"


def write_launcher(folder: str, python: str) -> str:
    """Write a Python command that starts this file in place of Spark's own; return the command to use.

    Without Unix sockets, and for everything else, it starts what Spark asks for. If nothing in the folder is
    executable, returns the plain Python.
    """
    import shlex

    launcher = os.path.join(folder, "python")
    with open(launcher, "w") as file:
        file.write(
            f'#!/bin/sh\nif [ "$2" = {SPARKS_WORKER} ] && [ -n "${_SOCKET_VARIABLE}" ]\n'
            f'then set -- -S {shlex.quote(os.path.abspath(__file__))}\nfi\nexec {shlex.quote(python)} "$@"\n'
        )
    os.chmod(launcher, 0o700)
    return launcher if os.access(launcher, os.X_OK) else python


def main() -> None:
    """Connect, and then run Spark's own worker."""
    # Not `socket`, which imports too much.
    import _socket

    early = _socket.socket(_socket.AF_UNIX)
    early.connect(os.environ[_SOCKET_VARIABLE])
    early.sendall(os.getpid().to_bytes(4, "big"))

    import site
    import socket

    site.main()
    # Unlike Spark's own worker, wait for the driver without a limit: a dead driver closes the connection.
    with socket.socket(fileno=early.detach()) as connection, connection.makefile("rwb") as file:
        from pyspark.sql.streaming.transform_with_state_driver_worker import main as answer

        answer(file, file)


if __name__ == "__main__":
    main()
