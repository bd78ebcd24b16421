"""Values of a topic and of the record by which pages search, count and sort. Pure.

Stage: under `fleet`, `trend`, `processes` and the pages of topics.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

THRASHING_SECONDS = 3_600.0
"""Within that time of the first, three actions that undo one another are thrashing."""
HOT = 1.0
"""Load from which a topic is hot: a rate at its split threshold."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """Values by which a topic is searched, filtered and sorted."""

    name: str
    namespace: str
    segments: int
    load: float | None
    """Of its fullest segment: the largest rate / split threshold; None: not known."""
    is_cold: bool
    """All its segments are."""
    gate: str
    """Of the hold that stands; empty: none."""
    waiting: str
    """The brake that holds its open decision; empty: none."""
    is_open: bool
    acted_at: datetime | None
    """When its newest decision was made."""
    consumers: int
    turns: tuple[tuple[str, datetime], ...]
    """Its newest applied actions, at most three."""
    version: int
    """Of the fleet, when it last changed."""
    load_sum: float = 0.0
    """Loads of its segments added up: so many segments at their split threshold would carry it."""
    hot_from: datetime | None = None
    """It has been hot at least since then; None: it is not."""
    short: int = 0
    """Consumers without a segment of their own, of all its subscriptions."""
    stuck_from: datetime | None = None
    """From when it is stuck if nothing happens: its decision is open, or the job has not heard of its end; None: it is
    not waiting for either."""

    @property
    def is_hot(self) -> bool:
        """A rate of it is above its split threshold."""
        return self.load is not None and self.load > HOT

    def is_stuck(self, now: datetime) -> bool:
        """It decides nothing any more until a person does something."""
        return self.stuck_from is not None and now >= self.stuck_from

    def is_thrashing(self, now: datetime) -> bool:
        """Its last three actions undid one another, not long ago."""
        if len(self.turns) < 3:
            return False
        kinds = [kind for kind, _ in self.turns]
        recent = now - self.turns[0][1] < timedelta(seconds=THRASHING_SECONDS)
        return recent and kinds[0] == kinds[2] != kinds[1]


@dataclass(frozen=True)
class PageFreshness:
    """Freshness of the data on a page."""

    now: datetime
    batch_at: datetime | None
    """When the job last committed; None: not seen."""
    trouble: str | None
    """Why the lake cannot be read; None: it can."""
    is_reading: bool
    """The first look is not over."""
    late_seconds: float = 60.0
    """Without a batch for longer the job is said to be silent."""
    unseen_seconds: float = 0.0
    """Time before `now` that no look at the lake has covered yet."""

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the job last committed, once it is late; None: it is at work, or never was."""
        if self.batch_at is None:
            return None
        age = (self.now - self.batch_at).total_seconds()
        return age if age > self.late_seconds + self.unseen_seconds else None
