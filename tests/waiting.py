"""Waiting for a condition with a deadline; tests never sleep for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONGEST_PAUSE_S = 0.5


def wait_until(condition: Callable[[], T], deadline_s: float = 30.0, every_s: float = 0.02) -> T:
    """The first true value of `condition`; fails the test after `deadline_s`.

    It is asked every `every_s` seconds, and one that takes long at most a quarter of the time: who waits leaves the
    machine to what is waited for.
    """
    end = time.monotonic() + deadline_s
    while True:
        asked = time.monotonic()
        if value := condition():
            return value
        answered = time.monotonic()
        if answered > end:
            raise AssertionError(f"not within {deadline_s:g} s: {getattr(condition, '__name__', condition)}")
        time.sleep(max(every_s, min(3 * (answered - asked), LONGEST_PAUSE_S)))
