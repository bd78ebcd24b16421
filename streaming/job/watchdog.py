"""Watchdog that reports once per outage that evaluations of all topics stopped, and that they resumed.

Stage: beside the query, in the driver. The clock is an argument, monotonic seconds. A fleet without topics is
evaluated as well: what counts is that the ticks of PIP-483 "Evaluation triggers" reach the lake.
"""

import logging
from dataclasses import dataclass
from typing import Literal

log = logging.getLogger(__name__)

Change = Literal["began", "ended"]
STALLED_SECONDS = 600.0
"""Least silence after which the job counts as stalled: an outage of Kafka passes without a restart."""
STALLED_OUTAGES = 5
OUTAGE_TICKS = 3
"""Ticks without an evaluation of every topic that count as an outage."""


@dataclass
class Watchdog:
    """Detector of missing evaluations within the last ticks."""

    tick_seconds: float
    ticks: int
    """An outage begins this many tick intervals after the last evaluation."""
    last_evaluation: float
    """Monotonic seconds; before the first evaluation, the time since which it is expected."""
    is_outage: bool = False

    def evaluated(self, now: float) -> None:
        """Record an evaluation of every topic at `now`, monotonic seconds."""
        self.last_evaluation = max(self.last_evaluation, now)

    def silent_seconds(self, now: float) -> float:
        """Return the time since the last evaluation."""
        return max(0.0, now - self.last_evaluation)

    def missed_ticks(self, now: float) -> int:
        """Return the number of whole tick intervals since the last evaluation."""
        return int(self.silent_seconds(now) / self.tick_seconds)

    def fault(self, now: float) -> str | None:
        """Return why a supervisor should restart the job; None: it should not."""
        silent, limit = self.silent_seconds(now), max(STALLED_SECONDS, STALLED_OUTAGES * self.ticks * self.tick_seconds)
        return f"no evaluation for {silent:.0f} s (limit: {limit:g} s)" if silent > limit else None

    def look(self, now: float) -> Change | None:
        """Return whether an outage began or ended since the last call."""
        was, self.is_outage = self.is_outage, self.missed_ticks(now) >= self.ticks
        if was == self.is_outage:
            return None
        return "began" if self.is_outage else "ended"


def report_change(change: Change, silent_seconds: float, ticks: int, query_says: str) -> None:
    """Log the change with a remedy; `query_says` is Spark's own status."""
    if change == "ended":
        log.warning("topics are evaluated again")
        return
    log.error(
        "no evaluation for %.0f s (limit: %d ticks); the query says: %s. Does Kafka answer (anabranch doctor), were "
        "ticks not written (lines above)? Is the disk of the lake or the checkpoint full? Does one batch take longer "
        "than a tick (anabranch_stream_batch_seconds; lower stream.batch_seconds, or add cores)?",
        silent_seconds,
        ticks,
        query_says,
    )
