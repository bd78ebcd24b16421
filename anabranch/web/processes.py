"""Health of the processes behind the page, by the lake and the controller's answers.

Stage: under every page, which shows them at its top. The job is known by its batches, executors by their register, the
controller by whether it answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from anabranch.history.picture import BrakesView
from anabranch.history.words import age, span

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
"""Between two questions to the controller."""


@dataclass(frozen=True)
class Process:
    """One line at the top of a page."""

    name: str
    state: str
    """`good`, `warn`, `bad` or `quiet` (not known), as the style sheet has them."""
    words: str


class Probe:
    """Asks in a thread of its own whether a process answers.

    `status`: the status of its answer, None without one. Below 500 any will do: a Pulsar does not know the path.
    """

    def __init__(self, status: Callable[[], int | None]) -> None:
        self._status = status
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self.words = ""
        """`answers`, or what is wrong; empty: not asked yet."""
        self.changed_at = time.time()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may still wait for an answer."""
        self._stop.set()

    def ask(self) -> None:
        """Ask once."""
        try:
            status = self._status()
        except Exception:
            log.exception("the controller could not be asked")
            status = None
        words = "no answer" if status is None else "answers" if status < 500 else f"answers {status}"
        if words != self.words:
            self.words, self.changed_at = words, time.time()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.ask()
            self._stop.wait(PROBE_SECONDS)


def processes(
    batch_at: datetime | None, silent_seconds: float | None, brakes: BrakesView, probe: Probe | None, now: datetime
) -> list[Process]:
    """Return the state of each process at `now`; `silent_seconds`: of a job that is late."""
    if batch_at is None:
        job = Process("job", "quiet", "nothing on record")
    elif silent_seconds is not None:
        job = Process("job", "bad", f"silent for {span(silent_seconds)}")
    else:
        job = Process("job", "good", f"last batch {age(batch_at, now)} ago")
    states = [job, _executor(brakes)]
    if probe is not None and probe.words:
        is_good, since = probe.words == "answers", span(now.timestamp() - probe.changed_at)
        words = probe.words if is_good else f"{probe.words} for {since}"
        states.append(Process("controller", "good" if is_good else "bad", words))
    return states


def _executor(brakes: BrakesView) -> Process:
    acting = [executor for executor in brakes.executors if executor.shards and not executor.is_silent]
    silent = [executor for executor in brakes.executors if executor.is_silent]
    if brakes.stop is not None:
        return Process("executor", "bad", "has stopped itself")
    if not acting:
        return Process("executor", "bad", f"{len(silent)} silent" if silent else "none is at work")
    words = f"{len(acting)} at work" + (f", {len(silent)} silent" if silent else "")
    words += ", something is paused" if brakes.pauses else ""
    return Process("executor", "warn" if silent or brakes.pauses else "good", words)
