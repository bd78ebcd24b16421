"""The manager of the state stage's processes, with a Spark that the test plays: who gets a task, and what is left of
what was killed."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.process

MANAGER = """
import os, struct, sys
from streaming.job import holders

def task(connection, authenticated):
    '''Says which process it is, and ends with what it is told.'''
    assert authenticated
    connection.recv(4)
    connection.sendall(struct.pack(">i", os.getpid()))
    return connection.recv(1) != b"."

holders.manage_tasks(task, float(sys.argv[1]))
"""


class Spark:
    """As much of Spark as the manager sees."""

    def __init__(self, folder: Path, idle_seconds: float = 600.0) -> None:
        self.folder = folder
        self.manager = subprocess.Popen(
            [sys.executable, "-c", MANAGER, str(idle_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder), "PYTHON_FAULTHANDLER_DIR": str(folder)},
        )
        assert self.manager.stdout is not None
        self._path = self.manager.stdout.read(struct.unpack(">i", self.manager.stdout.read(4))[0]).decode()

    def connect(self) -> socket.socket:
        """A connection as Spark keeps it from task to task."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(self._path)
        assert number_from(connection) == self.manager.pid
        return connection

    def processes(self) -> set[int]:
        """All of the manager's."""
        return {child.pid for child in psutil.Process(self.manager.pid).children()}


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """With a path that is short enough for sockets."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def spark(folder) -> Iterator[Spark]:
    one = Spark(folder)
    yield one
    with suppress(ProcessLookupError):
        os.killpg(one.manager.pid, signal.SIGKILL)
    one.manager.wait(30)


def number_from(connection: socket.socket) -> int:
    said = connection.recv(4)
    assert said, "closed"
    return struct.unpack(">i", said)[0]


def is_running(process: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def begin(connection: socket.socket, partition: int) -> None:
    connection.sendall(struct.pack(">i", partition))


def run(connection: socket.socket, partition: int) -> int:
    """A whole task; the process that it ran in."""
    begin(connection, partition)
    process = number_from(connection)
    connection.sendall(b".")
    return process


def test_partition_keeps_process_across_connections(spark):
    connections = [spark.connect(), spark.connect()]
    first = [run(connections[number], number) for number in range(2)]
    assert len(set(first)) == 2
    for turn in range(6):
        begin(connections[turn % 2], 0)
        begin(connections[1 - turn % 2], 1)
        assert [number_from(connections[turn % 2]), number_from(connections[1 - turn % 2])] == first
        for connection in connections:
            connection.sendall(b".")
    spark.connect().close()
    connections.append(spark.connect())
    assert run(connections[-1], 1) == first[1]
    assert spark.processes() == set(first)


def test_task_waits_for_its_busy_process(spark):
    busy, next_one, given_up = spark.connect(), spark.connect(), spark.connect()
    begin(busy, 0)
    process = number_from(busy)
    begin(given_up, 0)
    given_up.close()
    begin(next_one, 0)
    next_one.settimeout(0.05)
    with pytest.raises(TimeoutError):
        next_one.recv(4)
    next_one.settimeout(30)
    busy.sendall(b".")
    assert number_from(next_one) == process
    next_one.sendall(b".")


def test_killed_process_fails_only_its_task(spark, folder):
    killed, waiting, other = spark.connect(), spark.connect(), spark.connect()
    of_the_other = run(other, 1)
    begin(killed, 0)
    process = number_from(killed)
    begin(waiting, 0)
    (folder / str(process)).write_text("where it was")
    os.kill(process, signal.SIGKILL)
    assert killed.recv(4) == b""
    assert (folder / str(spark.manager.pid)).read_text() == "where it was"
    assert number_from(waiting) != process
    waiting.sendall(b".")
    assert run(other, 1) == of_the_other


def test_abandoned_task_ends_with_its_process(spark):
    given_up, other = spark.connect(), spark.connect()
    begin(given_up, 0)
    process = number_from(given_up)
    spark.manager.stdin.write(struct.pack(">i", spark.manager.pid))
    spark.manager.stdin.flush()
    given_up.close()
    wait_until(lambda: process not in spark.processes())
    assert run(other, 0) != process


def test_failed_task_ends_with_its_process(spark):
    """The process ends after Spark has read the reason."""
    failing = spark.connect()
    begin(failing, 0)
    process = number_from(failing)
    failing.sendall(b"!")
    failing.settimeout(0.05)
    with pytest.raises(TimeoutError):
        failing.recv(1)
    failing.close()
    wait_until(lambda: process not in spark.processes())
    assert run(spark.connect(), 0) != process


@pytest.mark.parametrize("end", ["its input is closed", "SIGTERM", "SIGKILL"])
def test_no_process_outlives_the_manager(spark, end, folder):
    connection = spark.connect()
    processes = [run(connection, partition) for partition in range(2)]
    if end == "its input is closed":
        spark.manager.stdin.close()
    else:
        spark.manager.send_signal(signal.Signals[end])
    spark.manager.wait(30)
    wait_until(lambda: not any(is_running(process) for process in processes))
    with suppress(ConnectionResetError):
        assert connection.recv(1) == b""
    assert end == "SIGKILL" or not list(folder.glob(".*.sock"))


def test_a_process_without_tasks_for_long_ends(folder):
    spark = Spark(folder, idle_seconds=0.1)
    connection = spark.connect()
    process = run(connection, 0)
    wait_until(lambda: process not in spark.processes())
    assert run(connection, 0) != process
    spark.manager.stdin.close()
    assert spark.manager.wait(30) == 0
