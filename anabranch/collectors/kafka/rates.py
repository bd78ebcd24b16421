"""Rates of a segment from readings of its offsets; pure.

Stage: under `collector`. A rate needs two readings: before the second one, after an offset that went back (a topic made
anew, a leader that lost messages, a subscription that was moved) and after a gap longer than the window it is unknown,
never zero. Retention and compaction do not move the end of a log, so they change no rate. Instants are seconds on the
collector's clock.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW_READINGS = 6
"""Readings over which rates roll (PIP-483: 60 s over 10 s)."""


class OffsetReading(NamedTuple):
    """An offset at an instant."""

    at: float
    offset: int


class OffsetProgress:
    """Readings of one offset over the last `window` seconds."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._readings: deque[OffsetReading] = deque()

    @property
    def newest(self) -> OffsetReading | None:
        """Return the newest reading."""
        return self._readings[-1] if self._readings else None

    def add(self, at: float, offset: int) -> bool:
        """Add a reading, later than the others; return False if the offset went back."""
        newest = self.newest
        went_back = newest is not None and offset < newest.offset
        if newest is not None and (went_back or at - newest.at > self.window):
            self._readings.clear()
        self._readings.append(OffsetReading(at, offset))
        while len(self._readings) > 2 and self._readings[1].at <= at - self.window:
            self._readings.popleft()
        return not went_back

    def rate(self, now: float) -> float | None:
        """Return the growth per second; None if it is unknown at `now`."""
        if len(self._readings) < 2 or now - self._readings[-1].at > self.window:
            return None
        first, last = self._readings[0], self._readings[-1]
        return (last.offset - first.offset) / (last.at - first.at) if last.at > first.at else None


@dataclass
class SubscriptionProgress:
    """Position of one subscription on a segment."""

    position: OffsetProgress
    read_at: float = float("-inf")
    """When it was last answered; also that there is no position."""
    has_position: bool = True


class SegmentRates(NamedTuple):
    """The four rates of PIP-483, per second."""

    msg_in: float
    bytes_in: float
    msg_out: float
    bytes_out: float


@dataclass
class SegmentProgress:
    """Offsets of one segment and its subscriptions, and the mean size of its messages."""

    window: float
    """Seconds over which rates roll."""
    end: OffsetProgress = field(init=False)
    subscriptions: dict[str, SubscriptionProgress] = field(default_factory=dict)
    message_bytes: float | None = None
    """Mean size of its messages; None: not measured yet."""
    measured_at: float = float("-inf")
    measured_end: int = 0
    """End of the log at that time."""

    def __post_init__(self) -> None:
        self.end = OffsetProgress(self.window)

    def follow(self, names: Iterable[str], window: float) -> None:
        """Follow these subscriptions and no others; their rates roll over `window` seconds."""
        self.subscriptions = {
            name: self.subscriptions.get(name) or SubscriptionProgress(OffsetProgress(window)) for name in names
        }
        for subscription in self.subscriptions.values():
            subscription.position.window = window

    def add_position(self, subscription: str, at: float, offset: int | None) -> None:
        """Record a position, or that there is none."""
        if (progress := self.subscriptions.get(subscription)) is None:
            return
        progress.read_at, progress.has_position = at, offset is not None
        if offset is None:
            progress.position = OffsetProgress(progress.position.window)
        else:
            progress.position.add(at, offset)

    def lag(self, subscription: str) -> int | None:
        """Return the messages between a subscription's position and the end; None if unknown."""
        position, end = self.subscriptions[subscription].position.newest, self.end.newest
        return None if position is None or end is None else max(end.offset - position.offset, 0)

    def rates(self, now: float) -> SegmentRates | None:
        """Return the rates at `now`; None if any part of them is unknown."""
        msg_in, msg_out = self.end.rate(now), 0.0
        for subscription in self.subscriptions.values():
            if not subscription.has_position and now - subscription.read_at <= subscription.position.window:
                continue
            if (rate := subscription.position.rate(now)) is None:
                return None
            msg_out += rate
        if msg_in is None or (self.message_bytes is None and (msg_in or msg_out)):
            return None
        size = self.message_bytes or 0.0
        return SegmentRates(msg_in, msg_in * size, msg_out, msg_out * size)
