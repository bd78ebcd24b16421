"""Number of consumers, counted by their attachments to segments in the loads of brokers.

Stage: beside `loads`; needs no calls of its own. Pulsar gives every consumer a segment while there are enough, and its
clients name the consumer of a segment `NAME-seg-ID`. So the distinct names are the registered consumers. If there are
more consumers than segments, the surplus is not visible and the number too small. That never makes a merge possible: no
merge goes below the number of consumers, and as many as segments are counted.

Like Pulsar, this counts a consumer that lost its connection until a grace period is over. While a broker's load is
unknown no consumer is dropped, and a topic that was never seen completely counts one for each unseen active segment.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from anabranch.collectors.announced import AnnouncedState, Consumers, Topic
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.pulsar.brokers import Brokers
from schemas.kafka.messages import SubscriptionType

GRACE_SECONDS = 60.0
"""Pulsar's default of `scalableTopicConsumerSessionGracePeriodSeconds`."""


@dataclass
class _Group:
    """Attached consumers of a subscription."""

    type: SubscriptionType
    seen_at: dict[str, float] = field(default_factory=dict)
    """Time of the last load that shows a consumer, by name."""


class AttachedConsumers:
    """Counts of all topics, announced after each load."""

    def __init__(
        self, brokers: Brokers, announced: AnnouncedState, announce: Callable[[list[KafkaRecord]], None]
    ) -> None:
        self._brokers, self._announced, self._announce = brokers, announced, announce
        self._groups: dict[str, dict[str, _Group]] = {}
        self._counted: set[str] = set()
        """Topics that were counted with the loads of all brokers known."""
        self._was_whole = False
        self._topics_of: dict[str, set[str]] = {}
        """Topics with consumers in the last load of each broker."""
        self._in_grace: set[str] = set()
        """Topics with a counted consumer that is not attached."""

    @property
    def unread(self) -> int:
        """Number of topics that were never counted with the loads of all brokers known."""
        return len(self._announced.topics.keys() - self._counted)

    def take_load(self, broker: str, now: float, now_ms: int) -> None:
        """Count the topics again that a new load of a broker may have changed."""
        load = self._brokers.known[broker].load
        topics = set(load.consumers) if load is not None else set()
        changed = topics | self._topics_of.get(broker, set()) | self._in_grace
        self._topics_of[broker] = topics
        for left in self._topics_of.keys() - self._brokers.known.keys():
            changed |= self._topics_of.pop(left)
        is_whole = self._is_whole()
        if is_whole and not self._was_whole:
            changed |= self._announced.topics.keys()
        self._was_whole = is_whole
        self.count(changed, now, now_ms)

    def count(self, topics: Iterable[str], now: float, now_ms: int) -> None:
        """Count the consumers of topics and announce changes."""
        is_whole = self._is_whole()
        for name in topics:
            if (topic := self._announced.topics.get(name)) is None:
                self.forget(name)
                continue
            numbers = self._number(name, topic, is_whole, now)
            if is_whole:
                self._counted.add(name)
            elif name not in self._counted:
                numbers = {**topic.consumers, **numbers}
            self._announce(self._announced.consumers(name, numbers, now_ms))

    def forget(self, topic: str) -> None:
        """Forget a deleted topic."""
        self._groups.pop(topic, None)
        self._counted.discard(topic)
        self._in_grace.discard(topic)

    def _number(self, name: str, topic: Topic, is_whole: bool, now: float) -> dict[str, Consumers]:
        groups = self._groups.setdefault(name, {})
        for broker in self._brokers.known.values():
            for (subscription, type), consumers in (broker.load.consumers.get(name, {}) if broker.load else {}).items():
                group = groups.setdefault(subscription, _Group(type))
                group.type = type
                group.seen_at.update(dict.fromkeys(consumers, now))
        if is_whole:
            for subscription, group in list(groups.items()):
                group.seen_at = {
                    consumer: seen_at for consumer, seen_at in group.seen_at.items() if now - seen_at < GRACE_SECONDS
                }
                if not group.seen_at:
                    del groups[subscription]
        in_grace = any(seen_at != now for group in groups.values() for seen_at in group.seen_at.values())
        (self._in_grace.add if in_grace else self._in_grace.discard)(name)
        missing = 0 if is_whole or name in self._counted else self._unseen(name, topic)
        active = sum(segment.state == "ACTIVE" for segment in topic.layout.segments.values()) if missing else 0
        return {
            subscription: Consumers(group.type, max(len(group.seen_at), min(active, len(group.seen_at) + missing)))
            for subscription, group in groups.items()
        }

    def _unseen(self, name: str, topic: Topic) -> int:
        """Return the number of active segments that no load shows."""
        seen = {
            segment
            for broker in self._brokers.known.values()
            if broker.load is not None
            for segment in broker.load.segments.get(name, ())
        }
        return sum(
            known_segment.state == "ACTIVE" and id not in seen for id, known_segment in topic.layout.segments.items()
        )

    def _is_whole(self) -> bool:
        brokers = self._brokers.known.values()
        return bool(brokers) and all(broker.load is not None for broker in brokers)
