"""Supervisor: starts parts in order, restarts dead ones with back-off, and leaves nothing behind.

Stage: the local run. Before a part is started again everything left of its session is ended, so that two drivers never
share a checkpoint. What was started is on record: the next supervisor cleans up after one that was killed.
"""

import json
import logging
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anabranch.local.processes import Child, PartSpec, PartState, carries_token, end_session, session_members
from runtime.java_home import SetupError

log = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
LOCK_SECONDS = 0.2
"""How long to wait for a folder's lock: `lock_owner` takes it for a moment when it looks."""
_LOOK_SECONDS = 0.1
_STEADY_SECONDS = 30.0
"""After this time up, a part's next death counts as its first."""


@dataclass
class _Part:
    spec: PartSpec
    child: Child | None = None
    state: str = "stopped"
    restarts: int = 0
    deaths_in_a_row: int = 0
    last_exit: int | None = None
    start_at: float = 0.0
    since: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    detail: str = ""

    def become(self, state: str, detail: str = "") -> None:
        self.state, self.detail, self.since = state, detail, datetime.now(timezone.utc)


class Supervisor:
    """Runs parts until it is told to stop. `run` is one thread's work; `states` may be read from any."""

    def __init__(self, folder: Path, restart_delay_s: float, restart_max_delay_s: float) -> None:
        """`folder` gets the logs and the record of what was started; delays are those of `[local]`."""
        self._logs = folder / "log"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._record = folder / "processes.json"
        self._delay, self._max_delay = restart_delay_s, restart_max_delay_s
        self._token = uuid.uuid4().hex
        self._parts: list[_Part] = []
        self.events: list[dict[str, Any]] = []
        """What happened to which part, oldest first: started, up, died, stopped."""
        end_leftovers(self._record)

    def states(self) -> list[PartState]:
        """All parts, in the order in which they were started."""
        return [
            PartState(
                part.spec.name,
                part.child.pid if part.child else None,
                part.state,
                part.restarts,
                part.last_exit,
                part.since,
                part.detail,
                part.deaths_in_a_row,
                part.spec.address,
            )
            for part in self._parts
        ]

    def start(self, spec: PartSpec, ready_seconds: float, stop: threading.Event | None = None) -> None:
        """Start a part and wait until it serves; a part that dies meanwhile is started again.

        Raises `SetupError` with the end of the part's log when it does not serve in time.
        """
        self.launch(spec)
        self.wait_for(spec.name, ready_seconds, stop)

    def launch(self, spec: PartSpec) -> None:
        """Start a part; `wait_for` waits until it serves."""
        part = _Part(spec)
        self._parts.append(part)
        self._launch(part)

    def wait_for(self, name: str, ready_seconds: float, stop: threading.Event | None = None) -> None:
        """Wait until a part that was launched serves. Raises as `start` does."""
        part = next(part for part in self._parts if part.spec.name == name)
        end = time.monotonic() + ready_seconds
        while part.state != "up":
            if stop is not None and stop.is_set():
                return
            self.look()
            if time.monotonic() > end:
                raise SetupError(f"the {name} does not serve after {ready_seconds:g} s: {self._last_words(part)}")
            time.sleep(_LOOK_SECONDS / 2)

    def run(self, stop: threading.Event) -> None:
        """Watch the parts until `stop` is set."""
        while not stop.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """One look at every part."""
        for part in self._parts:
            self._look_at(part)

    def stop(self, names: Sequence[str] | None = None, at_once: threading.Event | None = None) -> None:
        """Stop the parts of these names (all if None), the highest rank first.

        `at_once` cuts the waiting short. A part that cannot be ended does not keep the others running; it stays on
        record, and the next start ends it.
        """
        chosen = [part for part in self._parts if names is None or part.spec.name in names]
        for rank in sorted({part.spec.rank for part in chosen}, reverse=True):
            ranked = [part for part in chosen if part.spec.rank == rank and part.child is not None]
            for part in ranked:
                part.child.terminate()  # type: ignore[union-attr]
            for part in ranked:
                try:
                    self._finish(part, at_once)
                except (TimeoutError, subprocess.TimeoutExpired) as error:
                    log.error("%s does not end, not even by SIGKILL: %s", part.spec.name, error)
        self._write_record()

    def _look_at(self, part: _Part) -> None:
        if part.state == "restarting":
            if time.monotonic() >= part.start_at:
                part.restarts += 1
                self._launch_again(part)
            return
        if part.child is None:
            return
        if (code := part.child.exit_code()) is not None:
            try:
                self._bury(part, code)
            except TimeoutError as error:
                # Never two of a part: it starts again only after all of its session has ended.
                part.detail = str(error)
                log.error("%s: %s", part.spec.name, error)
        elif part.state == "starting" and part.spec.is_ready():
            part.become("up")
            self._note(part, "up")
        elif part.state == "up" and time.monotonic() - part.child.started > _STEADY_SECONDS:
            part.deaths_in_a_row = 0

    def _launch_again(self, part: _Part) -> None:
        try:
            self._launch(part)
        except (OSError, SetupError) as error:
            delay = self._put_off(part)
            part.become("restarting", f"cannot be started: {error}; again in {delay:g} s")
            log.warning("%s %s", part.spec.name, part.detail)

    def _launch(self, part: _Part) -> None:
        part.child = Child(part.spec, self._logs / f"{part.spec.name}.log", self._token)
        part.become("starting")
        self._note(part, "started", pid=part.child.pid)
        self._write_record()

    def _bury(self, part: _Part, code: int) -> None:
        assert part.child is not None
        part.child.kill_session()
        part.last_exit = code
        part.child = None
        delay = self._put_off(part)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        part.become("restarting", f"{how}; again in {delay:g} s")
        self._note(part, "died", exit=code, words=self._last_words(part))
        log.warning("%s died (%s); starting it again in %g s", part.spec.name, how, delay)

    def _put_off(self, part: _Part) -> float:
        """Schedule the next start of a part, and return the delay in seconds."""
        # By hand, not by tenacity: its loops would wait here, and one supervisor needs no jitter.
        delay: float = min(self._delay * 2**part.deaths_in_a_row, self._max_delay)
        part.deaths_in_a_row += 1
        part.start_at = time.monotonic() + delay
        return delay

    def _finish(self, part: _Part, at_once: threading.Event | None) -> None:
        assert part.child is not None
        end = time.monotonic() + part.spec.stop_seconds
        while part.child.exit_code() is None and time.monotonic() < end and not (at_once and at_once.is_set()):
            time.sleep(0.02)
        part.last_exit = part.child.exit_code()
        part.child.kill_session()
        part.child = None
        part.become("stopped")
        self._note(part, "stopped", exit=part.last_exit)

    def _note(self, part: _Part, change: str, **more: Any) -> None:
        instant = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self.events.append({"at": instant, "part": part.spec.name, "what": change, **more})

    def _last_words(self, part: _Part) -> str:
        try:
            lines = (self._logs / f"{part.spec.name}.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return "no log"
        return f"{lines[-1][-300:]} (log/{part.spec.name}.log)" if lines else f"nothing in log/{part.spec.name}.log"

    def _write_record(self) -> None:
        running = [(part.spec.name, part.child.pid) for part in self._parts if part.child is not None]
        partial = self._record.with_suffix(".part")
        sessions = [{"part": name, "session": pid, "token": self._token} for name, pid in running]
        try:
            partial.write_text(json.dumps(sessions))
            partial.replace(self._record)
        except OSError as error:
            log.warning("the record of what runs cannot be written: %s", error)


def leftovers(record: Path) -> list[int]:
    """The sessions that an earlier supervisor, which was killed, has left running.

    A session counts only while members of it carry the token of that supervisor: the id alone may belong to
    another session by now.
    """
    try:
        sessions = json.loads(record.read_text())
        return [
            entry["session"]
            for entry in sessions
            if any(carries_token(pid, entry["token"]) for pid in session_members(entry["session"]))
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def end_leftovers(record: Path) -> list[int]:
    """End what a killed earlier supervisor has left running, and return the ids of those sessions."""
    left = leftovers(record)
    for session in left:
        end_session(session)
    record.unlink(missing_ok=True)
    return left


def lock_owner(folder: Path) -> str | None:
    """The id of the process whose local run uses the folder; None when there is none."""
    file = folder / LOCK_FILE
    try:
        if file.exists():
            with FileLock(file, timeout=LOCK_SECONDS):
                return None
    except Timeout:
        return file.read_text().strip() or "unknown"
    except OSError:
        pass
    return None


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against a second local run; `SetupError` names the process that uses it."""
    file = folder / LOCK_FILE
    lock = FileLock(file, timeout=LOCK_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        held_by = file.read_text().strip() or "unknown"
        raise SetupError(f"another local run (process {held_by}) uses {folder}: stop it first") from error
    except OSError as error:
        raise SetupError(f"{folder} cannot be written to ({error.strerror}): set [local] folder to another") from error
    try:
        file.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()
