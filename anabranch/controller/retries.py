"""Delays between attempts made by a timer. Attempts that block a thread are repeated by tenacity."""

from __future__ import annotations

import random


def with_jitter(delay: float, jitter: float) -> float:
    """Return `delay` plus up to `jitter` seconds, so that thousands of failed attempts do not coincide."""
    return delay + random.uniform(0, jitter)


class RetryBackoff:
    """Doubling delays between unlimited attempts, up to `max_delay` (seconds)."""

    def __init__(self, delay: float, max_delay: float, jitter: float = 0.0) -> None:
        self._first, self._max, self._jitter = delay, max_delay, jitter
        self._next = delay

    def delay(self) -> float:
        """Return the delay before the next attempt."""
        delay, self._next = self._next, min(self._next * 2, self._max)
        return with_jitter(delay, self._jitter)

    def reset(self) -> None:
        """Restart with the shortest delay: something has changed."""
        self._next = self._first
