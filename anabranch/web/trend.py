"""The fleet over time as this process saw it: one point every ten seconds, of a day. Pure.

It begins with the process: what was before is in the lake, topic by topic.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from anabranch.web.rows import TopicRow

POINT_SECONDS = 10.0
"""Between two points."""
POINTS = 8_640
"""That are kept: a day."""
GAP_SECONDS = 4 * POINT_SECONDS
"""Between two points that are further apart nothing is known."""


@dataclass(frozen=True, slots=True)
class FleetPoint:
    """The whole fleet at an instant."""

    at: datetime
    load: float
    """Loads of all segments added up: so many segments at their split threshold would carry it."""
    segments: int
    over: int
    """Topics over their split threshold."""
    actions: int
    """Splits, merges and rebuckets applied since the point before."""


class FleetTrend:
    """The newest points, oldest first. One thread adds them."""

    def __init__(self, gap_seconds: float = GAP_SECONDS) -> None:
        """`gap_seconds`: more than the longest pause between two points."""
        self._gap_seconds = gap_seconds
        self._points: deque[FleetPoint] = deque(maxlen=POINTS)
        self._applied: int | None = None

    def is_due(self, now: datetime) -> bool:
        """Return True if the next point is due."""
        return not self._points or (now - self._points[-1].at).total_seconds() >= POINT_SECONDS

    def add(self, now: datetime, rows: Iterable[TopicRow], applied: int) -> None:
        """Add a point. `applied`: actions applied so far, a number that only grows."""
        load, segments, over = 0.0, 0, 0
        for row in rows:
            load += row.load_sum
            segments += row.segments
            over += row.is_hot
        before = applied if self._applied is None else self._applied
        self._applied = applied
        self._points.append(FleetPoint(now, load, segments, over, applied - before))

    def since(self, instant: datetime) -> list[FleetPoint | datetime]:
        """Return the points from an instant on; an instant without a point stands in the middle of each gap."""
        points: list[FleetPoint | datetime] = []
        previous: FleetPoint | None = None
        for point in list(self._points):
            if point.at < instant:
                continue
            if previous is not None and (point.at - previous.at).total_seconds() > self._gap_seconds:
                points.append(previous.at + timedelta(seconds=POINT_SECONDS))
            points.append(point)
            previous = point
        return points
