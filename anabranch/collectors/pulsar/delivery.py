"""Delivery: slow segments by the brokers' loads, reported on every change and while they are slow.

Beside `loads`; needs no call of its own, but where stats of slow segments are asked for. A topic that keeps up costs
one record an hour.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from anabranch.admin.answers import Answered
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord, delivery_record
from anabranch.collectors.pulsar.brokers import Brokers
from anabranch.collectors.pulsar.calls import CallAnswer
from schemas.kafka.delivery import MAX_SLOW_SEGMENTS, SLOW_SECONDS, SegmentDelivery

SLOW_REPEAT_SECONDS, CLEAR_REPEAT_SECONDS = 60.0, 3_600.0
"""How often a report is repeated, with slow segments and without; `decisions.autoscale.slowness` believes it longer."""


def segment_key(topic: str, segment: int) -> str:
    """Return the key of a call for a segment's stats."""
    return f"{topic} {segment}"


def segment_of(key: str) -> tuple[str, int]:
    """The topic, which has no space in it, and the segment."""
    topic, _, segment = key.rpartition(" ")
    return topic, int(segment)


@dataclass
class _Reported:
    """Last report about a topic."""

    at: float = float("-inf")
    figures: tuple[int, frozenset[int]] = (-1, frozenset())
    """Active segments that were read, and the slow ones among them."""
    behind_since: dict[int, float] = field(default_factory=dict)
    """By segment, since when it has been behind without a pause."""
    stats: dict[int, SegmentDelivery] = field(default_factory=dict)
    """By segment that is behind, its own stats when it was asked about last."""


class DeliveryReports:
    """Reports on the topics that `announced` knows, through `announce`."""

    def __init__(
        self, brokers: Brokers, announced: AnnouncedState, announce: Callable[[list[KafkaRecord]], None]
    ) -> None:
        self._brokers, self._announced, self._announce = brokers, announced, announce
        self._topics: dict[str, _Reported] = {}
        self.to_ask: dict[str, dict[tuple[str, int], None]] = {}
        """By broker, the slow segments of its last load whose stats were not asked for yet."""

    def take_load(self, topics: Iterable[str], now: float, now_ms: int) -> None:
        """Report on topics of which a broker's load has just come, as far as a report is due."""
        for name in set(topics):
            if name in self._announced.topics:
                self._report(name, self._topics.setdefault(name, _Reported()), now, now_ms)
            else:
                self._topics.pop(name, None)

    def ask_about(self, broker: str, is_new: bool) -> None:
        """Queue the slow segments in a broker's load for stats: all if it `is_new`, else those without stats."""
        load = self._brokers.known[broker].load
        slow = [
            (name, segment.id)
            for name, behind in (load.behind if load is not None else {}).items()
            for segment in behind
            if is_new or (name in self._topics and segment.id not in self._topics[name].stats)
        ]
        self.to_ask[broker] = dict.fromkeys(slow[:MAX_SLOW_SEGMENTS])

    def take_stats(self, answer: CallAnswer) -> None:
        """Replace a slow segment's delivery by its stats, which are more exact, if they were answered."""
        name, segment = segment_of(answer.call.key)
        broker = self._brokers.known.get(answer.call.broker)
        if broker is None or broker.load is None or not isinstance(answer.reply, Answered):
            return
        stats: SegmentDelivery | None = answer.reply.value
        other_segments = [delivery for delivery in broker.load.behind.get(name, ()) if delivery.id != segment]
        broker.load.behind[name] = other_segments if stats is None else [*other_segments, stats]
        if stats is not None and name in self._topics:
            self._topics[name].stats[segment] = stats
        self.take_load([name], answer.answered_at, answer.asked_ms)

    def _report(self, name: str, reported: _Reported, now: float, now_ms: int) -> None:
        layout = self._announced.topics[name].layout
        active = {id for id, segment in layout.segments.items() if segment.state == "ACTIVE"}
        read: set[int] = set()
        behind: dict[int, SegmentDelivery] = {}
        for broker in self._brokers.known.values():
            if broker.load is None:
                continue
            read |= active.intersection(broker.load.segments.get(name, ()))
            behind |= {delivery.id: delivery for delivery in broker.load.behind.get(name, ()) if delivery.id in active}
        reported.behind_since = {id: reported.behind_since.get(id, now) for id in behind}
        reported.stats = {id: delivery for id, delivery in reported.stats.items() if id in behind}
        for id, stats in reported.stats.items():
            details = {"backlog_age_seconds": stats.backlog_age_seconds, "waiting_publishers": stats.waiting_publishers}
            behind[id] = behind[id].model_copy(update=details)
        # An age was measured by the broker. An estimate has to last: a moment without delivery is no backlog.
        slow = [
            delivery
            for id, delivery in behind.items()
            if delivery.backlog_age_seconds is not None or now - reported.behind_since[id] >= SLOW_SECONDS
        ]
        figures = len(read), frozenset(delivery.id for delivery in slow)
        pause = SLOW_REPEAT_SECONDS if slow else CLEAR_REPEAT_SECONDS
        if figures == reported.figures and now - reported.at < pause:
            return
        reported.at, reported.figures = now, figures
        slow.sort(key=lambda delivery: (-delivery.backlog, delivery.id))
        self._announce([delivery_record(name, len(read), slow[:MAX_SLOW_SEGMENTS], now_ms, self._announced.sender)])
