"""Timing of a broker's rate computations: periodic, at instants that only its answers show; pure.

Stage: says `loads` when to read a broker's load. A broker answers the same bytes until it computes anew
(`statsUpdateFrequencyInSecs`, 60 s as shipped, at a fixed rate: a computation may come late, and the next ones are on
time again). Two readings that differ have a computation between them; the next ones follow a period later. Readings a
`SHARP_SECONDS` apart, as many as a period's bytes allow, find where in what is still possible, so that from the second
computation on a load is read within two seconds even if its answer has megabytes; then one reading a period is enough.
Instants are seconds on the collector's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

AGAIN_SECONDS = 1.5
"""Between two readings while nothing is known of the instants."""
QUIET_SECONDS = 5.0
"""The same of a broker that has answered the same for two periods: nothing happens there, or it computes nothing."""
SHARP_SECONDS = 0.5
"""What is known so exactly is not divided any more; also between a computation that is late and the look after it."""
MARGIN_SECONDS = 0.2
"""After the latest possible instant, until the broker is done with its computation."""
BYTES_PER_SECOND = 2_000_000
"""Of answers, over a period: a megabyte costs a broker some 12 ms (`benchmarks/collect.json`), so 2 % of a core."""
DRIFT_SECONDS = 0.05
"""A computation may come so much before or after a whole period."""
LATE = 3
"""So many in a row that came later than they could: the instants are others now."""
CHECKED = 5
"""Once in so many periods a reading before the earliest possible instant shows whether they come earlier."""
EARLIER_SECONDS = 4.0
"""By how much they are thought to come earlier then, at first; twice as much each time that it was not enough."""


@dataclass
class Refresh:
    """Knowledge of one broker's computations."""

    period: float
    """Between two computations, seconds."""
    earliest: float | None = None
    """The last computation that was on time was after this…"""
    latest: float = 0.0
    """…and before this."""
    read_at: float = float("-inf")
    """When the last answer was asked for."""
    digest: bytes | None = None
    size: int = 0
    """Of the last answer, bytes."""
    changed_at: float = float("-inf")
    """When an answer was another one than before."""
    lag: float | None = None
    """From the last computation until it was read, at most."""
    late: int = 0
    """Computations in a row that came after the latest possible instant."""
    early: int = 0
    """Computations in a row that came before the earliest possible instant."""
    unchecked: int = 0
    """Computations since a reading before the earliest possible instant."""
    placed_after: float = 0.0
    """`earliest` before the readings since: they count for nothing if the next computation turns out to be late."""

    def due_at(self) -> float:
        """Return when to read next."""
        if self.earliest is None:
            return self.read_at + self._searching()
        low, high = self.earliest + self.period, self.latest + self.period
        step = max(SHARP_SECONDS, (high - low) / self._readings())
        if self.read_at < low - SHARP_SECONDS and self.unchecked >= CHECKED:
            return low - SHARP_SECONDS
        following = max(self.read_at, low) + step
        if following < high:
            return following
        last = high + MARGIN_SECONDS
        if self.read_at < last:
            return last
        # Late: soon, then ever more seldom.
        return self.read_at + min(max(SHARP_SECONDS, self.read_at - last), self._searching())

    def _searching(self) -> float:
        """Between two readings while an instant is not known."""
        quiet = self.read_at - self.changed_at > 2 * self.period
        wait = min(QUIET_SECONDS if quiet else AGAIN_SECONDS, max(self.period / 2, 0.5))
        return max(wait, min(self.size / BYTES_PER_SECOND, self.period / 2))

    def _readings(self) -> int:
        """Into how many parts a period's readings may divide what is possible: half of its bytes."""
        return max(2, int(self.period * BYTES_PER_SECOND / 2 / max(self.size, 1)))

    def note(self, digest: bytes, asked_at: float, answered_at: float, size: int = 0) -> bool:
        """Record an answer of `size` bytes; return whether it differs from the one before."""
        before, self.read_at, self.size = self.read_at, asked_at, size
        if digest == self.digest:
            if self.earliest is not None and asked_at < self.latest + self.period:
                if asked_at >= self.earliest + self.period - SHARP_SECONDS - DRIFT_SECONDS:
                    self.unchecked = self.early = 0
                self.earliest = max(self.earliest, min(asked_at - self.period, self.latest))
            return False
        had_digest, self.digest = self.digest is not None, digest
        self.changed_at = asked_at
        if had_digest:
            self._place(before, asked_at, answered_at)
        return True

    def _place(self, before: float, asked_at: float, now: float) -> None:
        """A computation was between `before` and `now`; it shows in the answer to a call at `asked_at`."""
        self.unchecked += 1
        if self.earliest is None:
            self._begin(max(before, now - self.period), now)
            self.unchecked = CHECKED
            return
        passed = (asked_at - self.earliest + DRIFT_SECONDS) // self.period * self.period
        low, high = self.earliest + passed - DRIFT_SECONDS, self.latest + passed + DRIFT_SECONDS
        if passed == 0:
            self.early += 1
            self._begin(max(before, now - EARLIER_SECONDS * 2**self.early), now)
            self.lag = now - before
        elif before <= high:
            self.late = 0
            self.earliest, self.latest = max(before, low), min(now, high)
            self.lag = now - self.earliest
        elif self.late + 1 < LATE:
            self.late += 1
            self.earliest, self.latest, self.lag = self.placed_after + passed - DRIFT_SECONDS, high, now - before
        else:
            self._begin(before, now)
            self.unchecked = CHECKED
        self.placed_after = self.earliest

    def _begin(self, earliest: float, latest: float) -> None:
        self.earliest, self.latest, self.lag, self.late = earliest, latest, latest - earliest, 0
        self.placed_after = earliest

    def forget(self) -> None:
        """The broker has not answered: it may be another process by the time that it does."""
        self.earliest = self.lag = None
        self.late = self.early = 0
