"""Delays between attempts that a timer makes. Attempts that a thread waits for are repeated by tenacity."""

from __future__ import annotations

import random


def with_jitter(delay: float, jitter: float) -> float:
    """`delay` and up to `jitter` more, seconds: so that thousands that failed together do not come back together."""
    return delay + random.uniform(0, jitter)
