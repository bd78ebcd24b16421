"""Delays before a retry: exponential up to a bound, with jitter, so that retries do not coincide.

Stage: under `loop`, which keeps its own schedule instead of tenacity's loops.
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
        """Return seconds to wait after this number of consecutive failures, from 1."""
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = failures
        return self._wait(state)

    def slowly(self) -> float:
        """Return seconds to wait after a fault that does not pass soon: at least half of the longest delay."""
        return random.uniform(self._longest / 2, self._longest)
