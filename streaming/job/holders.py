"""Worker affinity: every task of the state stage runs in the process that holds its partition's state.

Stage: `streaming.job.workers`, in place of `pyspark.daemon.manager`, whose processes own a connection each while Spark
uses connections in turn. Here the manager owns the connections and passes one to the process of the task's partition
for the length of the task.

Protocol of Spark (`pyspark.daemon` and `pyspark.worker` of 4.2, with Unix sockets): a new connection is told a
process id; a task begins with its partition number; after its last byte the connection is free for the next task of
any partition. To cancel a task, Spark closes its connection. It also sends the process id, which is the manager's for
all of them, so only the connection identifies the task.
"""

import gc
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

Task = Callable[[socket.socket, bool], int]
"""Function like `pyspark.daemon.worker`: takes a connection and a flag for no password; 0: reusable."""

MAX_IDLE_SECONDS = 600.0
"""Idle time after which a partition belongs to another executor, or its query has ended."""
_INT = struct.Struct(">i")
_TASK, _DONE = b"t", b"d"


@dataclass
class _Holder:
    """Process of a partition."""

    pid: int
    channel: socket.socket
    last_task: float
    connection: socket.socket | None = None
    """Connection of the current task."""
    waiting: deque[socket.socket] = field(default_factory=deque)


class HolderManager:
    """Manager of one process per partition, forked at its first task."""

    def __init__(self, listener: socket.socket, requests: int, task: Task, idle_seconds: float):
        """Create a manager; Spark closes the file descriptor `requests` to end it."""
        self._listener, self._requests, self._task, self._idle_seconds = listener, requests, task, idle_seconds
        self._holders: dict[int, _Holder] = {}
        self._free: dict[int, socket.socket] = {}
        """Connections without a task, by file descriptor."""
        self._poll = select.poll()

    def serve(self) -> None:
        """Serve until Spark closes `requests`."""
        self._poll.register(self._requests, select.POLLIN)
        self._poll.register(self._listener, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(self._idle_seconds * 1000 / 10)}
            if self._requests in ready and not os.read(self._requests, _INT.size):
                return
            # Handle messages from workers first: a connection closed after its task is not a cancelled task.
            for partition, holder in list(self._holders.items()):
                if holder.channel.fileno() in ready:
                    self._hear(partition, holder)
            for partition, holder in list(self._holders.items()):
                self._drop_what_was_given_up(partition, holder, ready)
            for descriptor in ready & self._free.keys():
                self._begin(self._free[descriptor])
            if self._listener.fileno() in ready:
                # The client may already be gone.
                with suppress(OSError):
                    connection, _ = self._listener.accept()
                    connection.sendall(_INT.pack(os.getpid()))
                    self._set_free(connection)

    def _begin(self, connection: socket.socket) -> None:
        """Handle a task, or the end, of a free connection."""
        self._poll.unregister(connection)
        del self._free[connection.fileno()]
        try:
            # Either the whole number or nothing: it arrives together with what follows.
            request = connection.recv(_INT.size, socket.MSG_PEEK)
        except OSError:
            request = b""
        if len(request) < _INT.size:
            connection.close()
            return
        partition = _INT.unpack(request)[0]
        try:
            holder = self._holders.get(partition) or self._fork(partition)
        except OSError:
            # Too many processes, or too little memory: the task fails, and Spark reports it.
            traceback.print_exc()
            connection.close()
            return
        # While the task runs or waits, watch the connection only for hang-up.
        self._poll.register(connection, 0)
        holder.waiting.append(connection)
        self._give_next(holder)

    def _give_next(self, holder: _Holder) -> None:
        if holder.connection is None and holder.waiting:
            holder.connection = holder.waiting.popleft()
            with suppress(OSError):
                socket.send_fds(holder.channel, [_TASK], [holder.connection.fileno()])

    def _hear(self, partition: int, holder: _Holder) -> None:
        """Handle the end of a task, or of its process."""
        try:
            received = holder.channel.recv(1)
        except OSError:
            received = b""
        if received and holder.connection is not None:
            self._poll.unregister(holder.connection)
            self._set_free(holder.connection)
            holder.connection, holder.last_task = None, time.monotonic()
            self._give_next(holder)
        else:
            self._end(partition, holder)

    def _drop_what_was_given_up(self, partition: int, holder: _Holder, ready: set[int]) -> None:
        for connection in [waiting for waiting in holder.waiting if waiting.fileno() in ready]:
            holder.waiting.remove(connection)
            self._close(connection)
        is_given_up = holder.connection is not None and holder.connection.fileno() in ready
        is_idle = holder.connection is None and time.monotonic() - holder.last_task > self._idle_seconds
        if is_given_up or is_idle:
            self._end(partition, holder)

    def _end(self, partition: int, holder: _Holder) -> None:
        """Kill a process, if it still runs, and with it its current task."""
        os.kill(holder.pid, signal.SIGKILL)
        os.waitpid(holder.pid, 0)
        _hand_over_traceback(holder.pid)
        del self._holders[partition]
        self._close(holder.channel)
        if holder.connection is not None:
            self._close(holder.connection)
        for connection in holder.waiting:
            self._poll.unregister(connection)
            self._set_free(connection)

    def _close(self, connection: socket.socket) -> None:
        self._poll.unregister(connection)
        connection.close()

    def _set_free(self, connection: socket.socket) -> None:
        self._free[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)

    def _fork(self, partition: int) -> _Holder:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _hold_tasks(theirs, [self._listener, *self._connections()], self._task)
        theirs.close()
        self._holders[partition] = holder = _Holder(pid, ours, time.monotonic())
        self._poll.register(ours, select.POLLIN)
        return holder

    def _connections(self) -> list[socket.socket]:
        connections = list(self._free.values())
        for holder in self._holders.values():
            connections += [holder.channel, *holder.waiting, *filter(None, (holder.connection,))]
        return connections


def _hold_tasks(channel: socket.socket, inherited: list[socket.socket], task: Task) -> NoReturn:
    """Run tasks in a partition's process until one fails or the manager is gone."""
    try:
        for sig in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(sig, signal.SIG_DFL)
        for connection in inherited:
            # A copy here would keep it open after its owner closes it.
            connection.close()
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.close(devnull)
        while True:
            received, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
            if not received:
                break
            with socket.socket(fileno=descriptors[0]) as connection:
                if task(connection, True):
                    # Spark closes it after reading the reason.
                    with suppress(OSError):
                        while connection.recv(1024):
                            pass
                    break
            channel.sendall(_DONE)
            gc.collect()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _hand_over_traceback(pid: int) -> None:
    """Move a process' fault report to where Spark looks for it: under the process id that it knows."""
    if folder := os.environ.get("PYTHON_FAULTHANDLER_DIR"):
        with suppress(OSError):
            os.replace(os.path.join(folder, str(pid)), os.path.join(folder, str(os.getpid())))


def manage_tasks(task: Task, idle_seconds: float = MAX_IDLE_SECONDS) -> NoReturn:
    """Run the process that Spark has started; writes its socket path to standard output."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    path = os.path.join(os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"], f".{os.getpid()}-{time.time_ns()}.sock")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(socket.SOMAXCONN)
            encoded = path.encode()
            os.write(1, _INT.pack(len(encoded)) + encoded)
            HolderManager(listener, 0, task, idle_seconds).serve()
    finally:
        with suppress(OSError):
            os.remove(path)
        # To the whole process group: the partitions' processes.
        os.kill(0, signal.SIGHUP)
    sys.exit(0)


def speaks_by_unix_sockets() -> bool:
    """Return whether Spark's settings are those that `manage_tasks` supports."""
    return os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true"
