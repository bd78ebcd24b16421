"""When a broker computes its rates: every so many seconds, at instants that only its answers show; pure.

Stage: says `collector` when to read a broker's load. A broker answers the same bytes until it computes anew
(`statsUpdateFrequencyInSecs`, 60 s as shipped, at a fixed rate). Two readings that differ have a computation between
them; the next ones follow a period later. Each reading in the middle of what is still possible halves it. So a load is
read within `AGAIN_SECONDS` of its computation, and a broker's whole answer is asked for once or twice a period instead
of every second. Instants are seconds on the collector's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

AGAIN_SECONDS = 1.5
"""Between two readings while nothing is known of the instants."""
QUIET_SECONDS = 5.0
"""The same of a broker that has answered the same for a whole period: nothing happens there, or it computes nothing."""
SHARP_SECONDS = 0.5
"""What is known so exactly is not halved any more."""
MARGIN_SECONDS = 0.2
"""After the latest possible instant, until the broker is done with its computation."""
BYTES_PER_SECOND = 2_000_000
"""Both are longer for a long answer: a megabyte of it costs a broker 5 ms, and this keeps that at 1 % of a core."""
DRIFT_SECONDS = 0.05
"""A computation may come so much before a whole period is over."""


@dataclass
class Refresh:
    """What is known of one broker's computations."""

    period: float
    """Between two computations, seconds."""
    earliest: float | None = None
    """The last computation that was seen was after this…"""
    latest: float = 0.0
    """…and before this."""
    read_at: float = float("-inf")
    """When the last answer was asked for."""
    digest: bytes | None = None
    size: int = 0
    """Of the last answer, bytes."""
    changed_at: float = float("-inf")
    """When an answer was another one than before."""

    def due_at(self) -> float:
        """When to read next."""
        if self.earliest is None or self.read_at >= self.latest + self.period + MARGIN_SECONDS:
            quiet = self.read_at - self.changed_at > 2 * self.period
            wait = min(QUIET_SECONDS if quiet else AGAIN_SECONDS, max(self.period / 2, 0.5))
            return self.read_at + max(wait, min(self.size / BYTES_PER_SECOND, self.period / 2))
        low, high = self.earliest + self.period, self.latest + self.period
        middle = (low + high) / 2
        if high - low > SHARP_SECONDS and self.read_at < middle:
            return middle
        return high + MARGIN_SECONDS

    def note(self, digest: bytes, asked_at: float, answered_at: float, size: int = 0) -> bool:
        """Takes in an answer of `size` bytes; whether it is another one than before."""
        before, self.read_at, self.size = self.read_at, asked_at, size
        if digest == self.digest:
            if self.earliest is not None and asked_at < self.latest + self.period:
                self.earliest = max(self.earliest, min(asked_at - self.period, self.latest))
            return False
        known, self.digest = self.digest is not None, digest
        self.changed_at = asked_at
        if known:
            self.earliest, self.latest = self._earliest(before, answered_at), answered_at
        return True

    def _earliest(self, before: float, now: float) -> float:
        """After when the computation was that shows now; `before`: the last answer did not have it."""
        if self.earliest is None:
            return max(before, now - self.period)
        periods = (now - self.earliest) // self.period
        return max(before, self.earliest + periods * self.period - DRIFT_SECONDS)

    def forget(self) -> None:
        """The broker has not answered: it may be another process by the time that it does."""
        self.earliest = None
