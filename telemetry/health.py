"""Liveness and readiness of a process, as `/livez` and `/readyz` answer them.

Stage: made by each process from what its loops have done last. A process that is up and does nothing is not alive: a
supervisor restarts it. One that waits for something outside, such as Kafka, is alive and not ready: a restart would not
help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Heartbeat:
    """Time of the last pass of a loop, by a clock that stands still with the machine. For any thread."""

    def __init__(self, loop: str, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`loop`: a name for people. It has stalled after `max_seconds` without a pass."""
        self._loop, self._max_seconds, self._clock = loop, max_seconds, clock
        self._at = clock()

    def beat(self) -> None:
        """Record a pass."""
        self._at = self._clock()

    def fault(self) -> str | None:
        """Return why the loop counts as stalled; None: it does not."""
        seconds = self._clock() - self._at
        if seconds <= self._max_seconds:
            return None
        return f"no pass of {self._loop} for {seconds:.0f} s (limit: {self._max_seconds:g} s)"


class Health(NamedTuple):
    """Two questions to a process, asked from any thread: each answers None, or a reason without addresses or names."""

    stalled: Callable[[], str | None] = lambda: None
    not_ready: Callable[[], str | None] = lambda: None

    def unready(self) -> str | None:
        """Return why the process is not ready: it has stalled, or waits for something."""
        return self.stalled() or self.not_ready()


UNWATCHED = Health()
"""Health of a process of which nothing is known."""
