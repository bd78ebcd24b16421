"""Parts of a local run as child processes, each in its own session, so that none outlives it.

Stage: under `anabranch.local.supervisor`. A session may outlive the part's main process: with a JVM whose Python was
killed, or a worker that left its process group. Only processes of sessions that were started here are ever signalled.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

_TETHER = Path(__file__).parent / "tether.py"
_LOG_BYTES = 20_000_000
TOKEN_VARIABLE = "ANABRANCH_LOCAL_RUN"
"""Environment variable of every process of a part; its value identifies the supervisor."""


@dataclass(frozen=True)
class PartSpec:
    """A part of the local run: its command and its readiness check."""

    name: str
    command: Callable[[], Sequence[str]]
    """Returns the command; called at every start."""
    rank: int
    """Parts of a lower rank start before and stop after those of a higher one."""
    is_ready: Callable[[], bool] = lambda: True
    environment: Mapping[str, str] | None = None
    """All environment variables of the part; None: those of this process."""
    stop_seconds: float = 15.0
    address: str = ""
    """Address of its page; empty: it has none."""


@dataclass(frozen=True)
class PartState:
    """State of a part, for the screen and the report."""

    name: str
    pid: int | None
    state: str
    """`starting`, `up`, `restarting` or `stopped`."""
    restarts: int
    last_exit: int | None
    """Exit code of its last end; negative: the signal."""
    since: datetime
    """Time at which it entered this state."""
    detail: str
    deaths_in_a_row: int = 0
    """Deaths since it last ran steadily."""
    address: str = ""
    """Address of its page; empty: it has none."""


class Child:
    """A running part."""

    def __init__(self, spec: PartSpec, log: Path, token: str) -> None:
        """Start the process; its output is appended to `log`, which is rotated when it is large.

        `token` is in the environment of all its processes and identifies them. Raises `OSError` if there is no room for
        the log or no memory for the process.
        """
        if log.is_file() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        command = tethered(spec.command())
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**(os.environ if spec.environment is None else spec.environment), TOKEN_VARIABLE: token},
            )
        self.started = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id of the part, which is also the id of its session."""
        return self.process.pid

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the main process; the rest of the session ends with it."""
        if self.process.poll() is None:
            self.process.terminate()

    def kill_session(self, deadline_s: float = 10.0) -> None:
        """Kill the rest of the session and wait until nothing is left."""
        end_session(self.pid, deadline_s)
        self.process.wait(deadline_s)


def tethered(command: Sequence[str]) -> list[str]:
    """Wrap a command so that, on Linux, it ends with the thread that starts it."""
    return [sys.executable, "-S", str(_TETHER), str(os.getpid()), *command]


def end_session(session: int, deadline_s: float = 10.0) -> None:
    """End all processes of a session with SIGKILL and wait for it. Raises `TimeoutError` if some remain."""
    end = time.monotonic() + deadline_s
    while members := session_members(session):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > end:
            raise TimeoutError(f"processes {members} of session {session} do not end")
        time.sleep(0.02)


def session_members(session: int) -> list[int]:
    """Return the ids of a session's processes, without zombies."""
    return [pid for pid in psutil.pids() if _session_of(pid) == session and _is_alive(pid)]


def carries_token(pid: int, token: str) -> bool:
    """Return True if the process's environment has this token; False if it cannot be read."""
    try:
        return psutil.Process(pid).environ().get(TOKEN_VARIABLE) == token
    except (psutil.Error, OSError):
        return False


def _session_of(pid: int) -> int | None:
    # psutil does not know sessions.
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
