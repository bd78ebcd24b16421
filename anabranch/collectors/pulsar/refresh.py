"""Timing of a broker's rate computations, learned from its answers; pure.

Stage: tells `loads` when to read a broker's load. A broker computes its rates periodically
(`statsUpdateFrequencyInSecs`, 60 s by default, at a fixed rate: after a late computation the next ones are on time) and
answers the same bytes in between. So two different answers enclose a computation, and the next one follows a period
later. Readings within that interval, at least `SHARP_SECONDS` apart and as many as the byte budget allows, narrow it
down. From the second computation on a load is read within two seconds, even if its answer has megabytes; then one
reading per period is enough. Instants are seconds on the collector's clock.
"""

from dataclasses import dataclass

AGAIN_SECONDS = 1.5
"""Time between readings while the timing is unknown."""
QUIET_SECONDS = 5.0
"""The same for a broker whose answer has not changed for two periods: it is idle, or computes nothing."""
SHARP_SECONDS = 0.5
"""Precision at which an interval is not narrowed further; also the first delay after a late computation."""
MARGIN_SECONDS = 0.2
"""Delay after the latest possible instant, for the broker to finish its computation."""
BYTES_PER_SECOND = 2_000_000
"""Budget of answers over a period: a megabyte costs a broker 12 ms (`benchmarks/collect.json`), so 2 % of a core."""
DRIFT_SECONDS = 0.05
"""Deviation of a computation from a whole period."""
LATE = 3
"""Number of late computations in a row after which the timing is learned anew."""
CHECKED = 5
"""Periods between readings before the earliest possible instant, which detect earlier computations."""
EARLIER_SECONDS = 4.0
"""First assumption of how much earlier they come; doubled while it is not enough."""


@dataclass
class Refresh:
    """Learned timing of one broker's computations."""

    period: float
    """Time between two computations, seconds."""
    earliest: float | None = None
    """Lower bound of the last computation that was on time."""
    latest: float = 0.0
    """Upper bound of it."""
    read_at: float = float("-inf")
    """Time of the last request."""
    digest: bytes | None = None
    size: int = 0
    """Size of the last answer, bytes."""
    changed_at: float = float("-inf")
    """Request time of the last answer that differed from the one before."""
    lag: float | None = None
    """Upper bound of the time from the last computation to its reading."""
    late: int = 0
    """Number of computations in a row after the latest possible instant."""
    early: int = 0
    """Number of computations in a row before the earliest possible instant."""
    unchecked: int = 0
    """Number of computations since a reading before the earliest possible instant."""
    placed_after: float = 0.0
    """`earliest` without the later readings, which mean nothing if the next computation is late."""

    def due_at(self) -> float:
        """Return the time of the next reading."""
        if self.earliest is None:
            return self.read_at + self._search_interval()
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
        # The computation is late: read soon, then at growing intervals.
        return self.read_at + min(max(SHARP_SECONDS, self.read_at - last), self._search_interval())

    def _search_interval(self) -> float:
        """Return the time between readings while the timing is unknown."""
        quiet = self.read_at - self.changed_at > 2 * self.period
        wait = min(QUIET_SECONDS if quiet else AGAIN_SECONDS, max(self.period / 2, 0.5))
        return max(wait, min(self.size / BYTES_PER_SECOND, self.period / 2))

    def _readings(self) -> int:
        """Return the number of readings per period that half of the byte budget allows."""
        return max(2, int(self.period * BYTES_PER_SECOND / 2 / max(self.size, 1)))

    def note(self, digest: bytes, asked_at: float, answered_at: float, size: int = 0) -> bool:
        """Record an answer of `size` bytes; return True if it differs from the one before."""
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
        """Place a computation between `before` and `now`; the answer to the request at `asked_at` shows it."""
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
        """Forget the timing after a failed call: the next answer may come from another process."""
        self.earliest = self.lag = None
        self.late = self.early = 0
