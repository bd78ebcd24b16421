"""Delays before a retry: they double up to a bound, and are random, so that not all retries come at once.

Stage: under `loop`, which waits by its own timetable and not in tenacity's loops.
"""

from __future__ import annotations

import random

from tenacity import RetryCallState, Retrying, wait_random_exponential


class Backoff:
    """Delays between `delay` and `max_delay` seconds; the first one is `delay`."""

    def __init__(self, delay: float, max_delay: float) -> None:
        self._longest = max_delay
        self._wait = wait_random_exponential(multiplier=delay, max=max_delay, min=min(delay, max_delay))

    def after(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row, from 1."""
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = failures
        return self._wait(state)

    def slowly(self) -> float:
        """Seconds to wait for a fault that does not pass soon: at least half of the longest delay."""
        return random.uniform(self._longest / 2, self._longest)
