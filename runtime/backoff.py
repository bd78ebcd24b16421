"""Delays between attempts, with jitter, so that thousands of failed attempts do not coincide.

For schedules of our own: timers of the controller, the executor's loop. Attempts that block a thread are repeated by
tenacity.
"""

import random

from tenacity import RetryCallState, Retrying, wait_random_exponential


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


class Backoff:
    """Delays between `delay` and `max_delay` seconds; the first one is `delay`."""

    def __init__(self, delay: float, max_delay: float) -> None:
        self._longest = max_delay
        self._wait = wait_random_exponential(multiplier=delay, max=max_delay, min=min(delay, max_delay))

    def after(self, failures: int) -> float:
        """Return seconds to wait after this number of consecutive failures, from 1."""
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = failures
        return self._wait(state)

    def slowly(self) -> float:
        """Return seconds to wait after a fault that does not pass soon: at least half of the longest delay."""
        return random.uniform(self._longest / 2, self._longest)
