"""Liveness and readiness of a process, as served at `/livez` and `/readyz`, and its end by signals.

A process that runs without progress is not alive: a supervisor restarts it. One that waits for something outside, such
as Kafka, is alive but not ready: a restart would not help.
"""

import signal
import time
from collections.abc import Callable
from typing import NamedTuple


class Heartbeat:
    """Time of a loop's last pass, for any thread, by a clock that stops while the machine is suspended."""

    def __init__(self, loop: str, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`loop`: name in messages. It counts as stalled after `max_seconds` without a pass."""
        self._loop, self._max_seconds, self._clock = loop, max_seconds, clock
        self._at = clock()

    def beat(self) -> None:
        """Record a pass."""
        self._at = self._clock()

    def fault(self) -> str | None:
        """Return why the loop counts as stalled; None if it does not."""
        seconds = self._clock() - self._at
        if seconds <= self._max_seconds:
            return None
        return f"no pass of {self._loop} for {seconds:.0f} s (limit: {self._max_seconds:g} s)"


class ProcessHealth(NamedTuple):
    """Two probes of a process, for any thread: each returns None, or a reason without addresses and names."""

    stalled: Callable[[], str | None] = lambda: None
    not_ready: Callable[[], str | None] = lambda: None

    def unready(self) -> str | None:
        """Return why the process is not ready: it has stalled, or waits for something."""
        return self.stalled() or self.not_ready()


UNWATCHED = ProcessHealth()
"""Health of a process without probes: always live and ready."""


def call_on_signals(stop: Callable[[], object]) -> None:
    """Call `stop` at SIGINT and SIGTERM, instead of ending the process; on the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop())
