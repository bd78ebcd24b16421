"""Delays between attempts that a timer makes. Attempts that a thread waits for are repeated by tenacity."""

from __future__ import annotations

import random


def with_jitter(delay: float, jitter: float) -> float:
    """`delay` and up to `jitter` more, seconds: so that thousands that failed together do not come back together."""
    return delay + random.uniform(0, jitter)


class Backoff:
    """The delays before attempts that may go on for ever: each twice the one before, up to `max_delay` (seconds)."""

    def __init__(self, delay: float, max_delay: float, jitter: float = 0.0) -> None:
        self._first, self._max, self._jitter = delay, max_delay, jitter
        self._next = delay

    def delay(self) -> float:
        """Before the next attempt."""
        delay, self._next = self._next, min(self._next * 2, self._max)
        return with_jitter(delay, self._jitter)

    def reset(self) -> None:
        """Begin again with the shortest: something has changed."""
        self._next = self._first
