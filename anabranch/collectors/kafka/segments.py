"""Active segments with their progress, and which call about them is due; pure.

Stage: under `collector`. A segment of which any part is unknown has no rates: the job then knows that it does not know,
and neither splits nor merges by a guess.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from anabranch.collectors.announcements import LoadRates
from anabranch.collectors.kafka.rates import SegmentProgress, SegmentRates
from anabranch.collectors.kafka.topics import ListedSegment, ListedTopic

MAX_MEASURED = 50
"""Segments of one call for the sizes of messages."""
MEASURE_AGAIN_SECONDS, MEASURE_SOON_SECONDS = 60.0, 5.0
"""Between two measurements of a segment's messages; soon where none was found, as with transactions' offsets."""
CACHED_GROUPS, NEW_CLIENTS_PER_SECOND = 64, 3.0
"""Groups with a client of their own; with more, each reading of a position opens one."""


class SegmentReport(NamedTuple):
    """A followed segment, for people."""

    topic: str
    segment: int
    rates: SegmentRates | None
    lag: dict[str, int | None]
    """Messages between position and end, by subscription."""


class FollowedSegment(NamedTuple):
    """An active segment that Kafka lists."""

    topic: str
    kafka: ListedSegment
    progress: SegmentProgress

    @property
    def name(self) -> str:
        """Return `topic/id`."""
        return f"{self.topic}/{self.kafka.id}"


class FollowedSegments:
    """All active segments; rates roll over `window` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._segments: dict[str, FollowedSegment] = {}
        """By Kafka topic."""
        self._groups: dict[str, list[str]] = {}
        """Subscriptions with a group, by Kafka topic."""
        self._asked_at: dict[tuple[str, str], float] = {}
        """When each position was asked for, the longest ago first; by Kafka topic and subscription."""
        self._asked_once: dict[tuple[str, str], float] = {}
        """The same of those that were asked for once."""
        self._positions_window, self._calls_per_second = window, 1.0
        self._position_seconds = 0.0
        """Shortest time between two readings of positions."""
        self._position_at = float("-inf")
        self.unlisted: list[str] = []
        """Active segments that Kafka does not list, each `topic/id`."""

    def __iter__(self) -> Iterator[FollowedSegment]:
        return iter(self._segments.values())

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, kafka_topic: str) -> FollowedSegment:
        return self._segments[kafka_topic]

    def get(self, kafka_topic: str) -> FollowedSegment | None:
        """Return a segment, None if it is not followed any more."""
        return self._segments.get(kafka_topic)

    def update(self, topics: Iterable[ListedTopic]) -> None:
        """Follow the active segments of these topics and no others."""
        before, self._segments, self.unlisted = self._segments, {}, []
        for topic in topics:
            for id, kafka in topic.active():
                if kafka is None:
                    self.unlisted.append(f"{topic.name}/{id}")
                    continue
                known = before.get(kafka.kafka_topic)
                progress = known.progress if known is not None else SegmentProgress(self._window)
                self._segments[kafka.kafka_topic] = FollowedSegment(topic.name, kafka, progress)
        self._follow_groups()

    def update_groups(self, groups: Iterable[tuple[str, str]], calls_per_second: float) -> None:
        """Follow the positions of these groups and no others."""
        self._groups = {}
        for kafka_topic, subscription in groups:
            self._groups.setdefault(kafka_topic, []).append(subscription)
        self._calls_per_second = calls_per_second
        self._follow_groups()

    def _follow_groups(self) -> None:
        listed = {(name, subscription) for name in self._segments for subscription in self._groups.get(name, ())}
        # With more groups than calls, positions are read less often, and their rates roll over a longer time.
        self._position_seconds = 1 / NEW_CLIENTS_PER_SECOND if len(listed) > CACHED_GROUPS else 0.0
        seconds = max(1 / self._calls_per_second, self._position_seconds)
        self._positions_window = max(self._window, 3 * len(listed) * seconds)
        self._asked_once = {key: at for key, at in self._asked_once.items() if key in listed}
        known = {key: at for key, at in self._asked_at.items() if key in listed}
        new = sorted(listed - known.keys() - self._asked_once.keys())
        self._asked_at = dict.fromkeys(new, float("-inf")) | known
        for name, followed in self._segments.items():
            followed.progress.follow(self._groups.get(name, ()), self._positions_window)

    def led(self) -> list[str]:
        """Return the Kafka topics that have a leader."""
        return [name for name, followed in self._segments.items() if followed.kafka.leader]

    def due_ends(self) -> list[str]:
        """Return the Kafka topics that have a leader and whose end was never read."""
        return [name for name in self.led() if self._segments[name].progress.end.newest is None]

    def due_position(self, now: float, interval: float) -> tuple[str, str] | None:
        """Return the position that is due, which counts as asked for; None if none is.

        The second reading comes soon after the first, so that there is a rate in the next round.
        """
        if now < self._position_at + self._position_seconds:
            return None
        for waiting, seconds in ((self._asked_once, interval / 2), (self._asked_at, interval)):
            key = next(iter(waiting), None)
            if key is not None and now - waiting[key] >= seconds:
                is_first = waiting.pop(key) == float("-inf")
                (self._asked_once if is_first else self._asked_at)[key] = self._position_at = now
                return key
        return None

    def due_sizes(self, now: float) -> dict[str, int]:
        """Return the ends of segments whose messages are to be measured."""
        due: dict[str, int] = {}
        for name in self.led():
            progress = self._segments[name].progress
            newest = progress.end.newest
            wait = MEASURE_AGAIN_SECONDS if progress.message_bytes is not None else MEASURE_SOON_SECONDS
            is_new = newest is not None and newest.offset > progress.measured_end
            if newest is not None and is_new and now - progress.measured_at >= wait and len(due) < MAX_MEASURED:
                due[name] = newest.offset
        return due

    def note_sizes(self, ends: Mapping[str, int], sizes: Mapping[str, float], now: float) -> None:
        """Record the mean sizes of the messages before these ends."""
        for name, end in ends.items():
            progress = self._segments[name].progress
            progress.measured_at = now
            if name in sizes:
                progress.message_bytes, progress.measured_end = sizes[name], end

    def loads(self, now: float) -> dict[str, list[LoadRates]]:
        """Return the known rates of all segments by their leaders, in the order of topics and ids."""
        by_leader: dict[str, list[LoadRates]] = {}
        for followed in sorted(self, key=lambda followed: (followed.topic, followed.kafka.id)):
            rates = followed.progress.rates(now)
            if rates is not None and followed.kafka.leader:
                load = LoadRates(followed.topic, followed.kafka.id, *rates)
                by_leader.setdefault(followed.kafka.leader, []).append(load)
        return by_leader

    def unseen(self, now: float) -> list[str]:
        """Return the active segments whose rates are unknown, each `topic/id`."""
        silent = (f for f in self if not f.kafka.leader or f.progress.rates(now) is None)
        return [*self.unlisted, *(followed.name for followed in silent)]

    def views(self, now: float) -> list[SegmentReport]:
        """Return all followed segments by topic and id."""
        return sorted(
            SegmentReport(
                followed.topic,
                followed.kafka.id,
                followed.progress.rates(now),
                {name: followed.progress.lag(name) for name in sorted(followed.progress.subscriptions)},
            )
            for followed in self
        )

    def positions_read(self) -> list[float]:
        """Return when each position was answered last; minus infinity: never."""
        return [progress.read_at for followed in self for progress in followed.progress.subscriptions.values()]
