"""Waiting for a condition with a deadline; tests never sleep for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline_s: float = 30.0, every_s: float = 0.02) -> T:
    """The first true value of `condition`, asked every `every_s` seconds; fails the test after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {getattr(condition, '__name__', condition)}")
        time.sleep(every_s)
    return value
