"""Loop of the collector: reads offsets, and sends rates as samples.

Stage: over everything else in this folder. Each round reads which segments there are, the ends of the active ones and
the consumer groups, and sends the rates. Between rounds the budget of calls goes to layouts, positions and the sizes of
messages. One thread does it all; a call waits for some seconds at most.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaException

from anabranch.admin.answers import Reply, Unanswered
from anabranch.collectors.announcements import load_records
from anabranch.collectors.kafka.rates import WINDOW_READINGS
from anabranch.collectors.kafka.segments import FollowedSegments, SegmentReport
from anabranch.collectors.kafka.topics import ListedSegment, ListedTopic, ListedTopics
from anabranch.collectors.publisher import RecordPublisher
from anabranch.collectors.pulsar.sweep import Budget
from anabranch.collectors.status import BrokerStatus, CollectorStatus, Troubles
from schemas.settings.processes import CollectSettings

log = logging.getLogger(__name__)
T = TypeVar("T")

DEFAULT_INTERVAL_SECONDS = 10.0
"""Between two readings of a segment's end (PIP-483)."""
STATUS_SECONDS = 2.0
MAX_ENDS = 1_000
"""Segments of one call."""
PAUSE_SECONDS = 5.0
"""Until the next call of a kind that had no answer: each may have waited for seconds, and all share one thread."""
ROUND_CALLS = 3
"""Calls of a round with at most `MAX_ENDS` segments; rounds use at most half of the budget."""
MAX_NAMED = 20
_IDLE_SECONDS = 0.05


class Cluster(Protocol):
    """Brokers and segments as Kafka lists them."""

    @property
    def brokers(self) -> Sequence[str]:
        """Return the live brokers, each `host:port`."""

    @property
    def segments(self) -> Sequence[ListedSegment]:
        """Return the segments' topics."""


class Readings(Protocol):
    """Reader of Kafka (`anabranch.controller.segments.kafka_readings`); all calls raise `KafkaException`."""

    def cluster(self) -> Cluster:
        """Return the brokers and the segments' topics."""

    def ends(self, kafka_topics: Iterable[str]) -> Mapping[str, int | str]:
        """Return the end of each topic, or why it is not known."""

    def groups(self) -> list[tuple[str, str]]:
        """Return Kafka topic and subscription of each consumer group of a segment."""

    def position(self, kafka_topic: str, subscription: str) -> int | None:
        """Return a subscription's position, None without one."""

    def message_sizes(self, ends: Mapping[str, int]) -> Mapping[str, float]:
        """Return the mean size of the newest messages before these ends."""


class KafkaCollector:
    """Collects the topics of the controller that `layout` asks."""

    def __init__(
        self,
        settings: CollectSettings,
        url: str,
        layout: Callable[[str], Reply[Any]],
        readings: Readings,
        outlet: RecordPublisher,
    ) -> None:
        """`url` is for people."""
        self._url, self._layout, self._readings, self._outlet = url, layout, readings, outlet
        interval = settings.load_seconds or DEFAULT_INTERVAL_SECONDS
        self._interval = max(interval, 2 * ROUND_CALLS / settings.calls_per_second)
        self._window = WINDOW_READINGS * self._interval
        self._budget = Budget(settings.calls_per_second)
        self._topics = ListedTopics(settings.namespaces)
        self._followed = FollowedSegments(self._window)
        self._troubles = Troubles()
        self._paused_until: dict[str, float] = {}
        """Until when calls of a kind wait after a failure."""
        self._brokers: tuple[str, ...] = ()
        """Live ones, of the last round."""
        self._round_at, self._rounds, self._turn = 0.0, 0, 0
        self._sent = 0
        """Segments in the samples of the last round."""
        self.calls = self.failed_calls = self.samples = 0

    def run(self, stop: threading.Event, each: Callable[[CollectorStatus], bool] = lambda _: True) -> None:
        """Collect until `stop` is set, or `each`, which gets the status every few seconds, answers False."""
        status_at = 0.0
        while not stop.is_set():
            if not self.step(time.monotonic()):
                stop.wait(_IDLE_SECONDS)
            self._outlet.poll()
            if (now := time.monotonic()) >= status_at:
                status_at = now + STATUS_SECONDS
                if not each(self.status()):
                    return

    def step(self, now: float) -> bool:
        """Do the next thing that is due; return False if nothing is, or the budget has no call left."""
        if now >= self._round_at:
            late = (now - self._round_at) % self._interval if self._rounds else 0.0
            self._round_at = now - late + self._interval
            self._rounds += 1
            self._begin_round(now)
            return True
        if not self._budget.has_room(now):
            return False
        finders = (self._due_layout, self._due_ends, self._due_position, self._due_sizes)
        for turn in range(self._turn, self._turn + len(finders)):
            if (call := finders[turn % len(finders)](now)) is not None:
                self._turn = turn + 1
                self._budget.take(now)
                call()
                return True
        return False

    def _begin_round(self, now: float) -> None:
        for _ in range(ROUND_CALLS + len(self._followed) // MAX_ENDS):
            self._budget.spend(now)
        cluster = self._ask("cluster", "Kafka does not list the segments", self._readings.cluster)
        self._brokers, self._sent = tuple(cluster.brokers) if cluster is not None else (), 0
        if cluster is None:
            return
        self._topics.update(cluster.segments, now)
        self._troubles.keep(lambda kind, key: kind != "layout" or key in self._topics.known)
        self._follow_segments()
        self._read_ends(self._followed.led())
        groups = self._ask("groups", "Kafka does not list the consumer groups", self._readings.groups)
        if groups is not None:
            self._followed.update_groups(groups, self._budget.per_second)
        self._send_samples()

    def _follow_segments(self) -> None:
        self._followed.update(self._topics.known.values())
        leaderless = [followed.name for followed in self._followed if not followed.kafka.leader]
        self._note_named("leaders", leaderless, "have no leader in Kafka")
        self._note_named("unlisted", self._followed.unlisted, "are not in Kafka")

    def _read_ends(self, kafka_topics: Sequence[str]) -> None:
        faults: dict[str, str] = {}
        for start in range(0, len(kafka_topics), MAX_ENDS):
            asked_at = time.monotonic()
            some = kafka_topics[start : start + MAX_ENDS]
            ends = self._ask("ends", "the ends of segments cannot be read", partial(self._readings.ends, some))
            at = (asked_at + time.monotonic()) / 2
            for name, end in (ends or {}).items():
                followed = self._followed[name]
                if isinstance(end, str):
                    faults[followed.name] = end
                elif not followed.progress.end.add(at, end):
                    log.warning("the end of %s went back to %d: its rates are unknown", followed.name, end)
        if faults:
            self._paused_until["ends"] = time.monotonic() + PAUSE_SECONDS
        self._note_named("segments", list(faults), f"cannot be read: {next(iter(faults.values()), '')}")

    def _send_samples(self) -> None:
        for leader, loads in self._followed.loads(time.monotonic()).items():
            for record in load_records(leader, time.time_ns() // 1_000_000, loads):
                self._outlet.report(record)
            self._sent += len(loads)
        self.samples += self._sent

    # Calls between rounds

    def _due_layout(self, now: float) -> Callable[[], None] | None:
        topic = None if self._is_paused("layout", now) else self._topics.next_due(now)
        return None if topic is None else partial(self._read_layout, topic)

    def _read_layout(self, topic: ListedTopic) -> None:
        self.calls += 1
        reply = self._layout(topic.name)
        self._topics.take_layout(topic, reply, time.monotonic())
        if isinstance(reply, Unanswered):
            self._paused_until["layout"] = time.monotonic() + PAUSE_SECONDS
        self.failed_calls += topic.trouble is not None
        self._troubles.note(("layout", topic.name), topic.trouble)
        self._follow_segments()

    def _due_ends(self, now: float) -> Callable[[], None] | None:
        """New segments are read at once, so that the next round has two readings of them."""
        new = self._followed.due_ends()
        return partial(self._read_ends, new) if new and not self._is_paused("ends", now) else None

    def _due_position(self, now: float) -> Callable[[], None] | None:
        key = None if self._is_paused("position", now) else self._followed.due_position(now, self._interval)
        return None if key is None else partial(self._read_position, *key)

    def _read_position(self, kafka_topic: str, subscription: str) -> None:
        asked_at = time.monotonic()

        def read() -> tuple[int | None]:
            return (self._readings.position(kafka_topic, subscription),)

        answer = self._ask("position", f"the position of {subscription} in {kafka_topic} cannot be read", read)
        followed = self._followed.get(kafka_topic)
        if answer is not None and followed is not None:
            followed.progress.add_position(subscription, (asked_at + time.monotonic()) / 2, answer[0])

    def _due_sizes(self, now: float) -> Callable[[], None] | None:
        due = {} if self._is_paused("sizes", now) else self._followed.due_sizes(now)
        return partial(self._measure_sizes, due) if due else None

    def _measure_sizes(self, ends: Mapping[str, int]) -> None:
        sizes = self._ask("sizes", "messages cannot be measured", partial(self._readings.message_sizes, ends))
        self._followed.note_sizes(ends, sizes or {}, time.monotonic())

    def _ask(self, kind: str, trouble: str, call: Callable[[], T]) -> T | None:
        """Make a call; after a failure return None, note the condition and pause calls of this kind."""
        self.calls += 1
        try:
            answer = call()
        except KafkaException as error:
            self.failed_calls += 1
            self._troubles.note((kind, ""), f"{trouble}: {error.args[0].str()}")
            self._paused_until[kind] = time.monotonic() + PAUSE_SECONDS
            return None
        self._troubles.note((kind, ""), None)
        return answer

    def _is_paused(self, kind: str, now: float) -> bool:
        return now < self._paused_until.get(kind, 0.0)

    def _note_named(self, kind: str, names: Sequence[str], trouble: str) -> None:
        shown = ", ".join(names[:MAX_NAMED])
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        self._troubles.note((kind, ""), f"active segments {trouble}: {shown}{more}" if names else None)

    # How it goes

    @property
    def has_seen_all(self) -> bool:
        """Return whether the last round has sent the rates of every segment, but for those without a leader."""
        is_read = bool(self._brokers) and not self._topics.unread and self._rounds > 1
        return is_read and self._sent == len(self._followed.led())

    def segments(self) -> list[SegmentReport]:
        """Return all followed segments by topic and id."""
        return self._followed.views(time.monotonic())

    def status(self) -> CollectorStatus:
        """Return the collector's status; only for the thread that runs it."""
        now = time.monotonic()
        topics = [topic for topic in self._topics.known.values() if not topic.is_foreign]
        positions = self._followed.positions_read()
        age = max((now - read_at for read_at in positions if read_at > float("-inf")), default=0.0)
        return CollectorStatus(
            url=self._url,
            at=time.time_ns() // 1_000_000,
            stale_after_seconds=max(10 * STATUS_SECONDS, 3 * self._interval),
            brokers=[self._broker_status(name, now) for name in sorted(self._brokers)],
            topics=sum(topic.layout is not None for topic in topics),
            topics_listed=len(topics),
            topics_unread=self._topics.unread,
            consumers_unread=positions.count(float("-inf")),
            segments_known=len(self._followed) + len(self._followed.unlisted),
            segments_seen=self._sent,
            unseen=self._followed.unseen(now)[:MAX_NAMED],
            consumers_age_seconds=age,
            used_consumers_age_seconds=age,
            layouts_age_seconds=max((now - topic.read_at for topic in topics if topic.layout is not None), default=0.0),
            samples=self.samples,
            events=self._outlet.sent,
            waiting=self._outlet.waiting + self._outlet.samples_waiting,
            lost=self._outlet.lost,
            calls=self.calls,
            failed_calls=self.failed_calls,
            troubles=[*([self._outlet.trouble] if self._outlet.trouble else []), *self._troubles][:MAX_NAMED],
        )

    def _broker_status(self, broker: str, now: float) -> BrokerStatus:
        newest = [followed.progress.end.newest for followed in self._followed if followed.kafka.leader == broker]
        ages = [now - reading.at for reading in newest if reading is not None]
        return BrokerStatus(
            broker=broker,
            answers=not newest or any(age <= self._window for age in ages),
            segments=len(newest),
            refresh_seconds=self._interval,
            load_age_seconds=max(ages, default=None),
        )
