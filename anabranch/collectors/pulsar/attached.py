"""Consumers counted by what brokers' loads show: those that are attached to segments.

Stage: beside `loads`; needs no call of its own. Pulsar gives every consumer a segment as long as there are enough of
them, and Pulsar's clients name the consumer of a segment `NAME-seg-ID`. So distinct names are the registered consumers,
unless there are more of them than segments: those beyond show nowhere. The number is then too small, and that never
makes a merge possible: no merge goes below the number of consumers, and there are as many as segments already.

Like Pulsar this counts a consumer that lost its connection until a grace period is over. As long as some broker's load
is not known nobody is dropped, and a topic of which there was no whole view yet counts one consumer for each active
segment that is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from anabranch.collectors.announced import AnnouncedState, Consumers, Topic
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.pulsar.brokers import Brokers
from schemas.kafka.messages import SubscriptionType

GRACE_SECONDS = 60.0
"""As Pulsar ships `scalableTopicConsumerSessionGracePeriodSeconds`."""


@dataclass
class _Group:
    """The consumers of one subscription."""

    type: SubscriptionType
    seen_at: dict[str, float] = field(default_factory=dict)
    """By name, when it was attached last."""


class AttachedConsumers:
    """Announces the counts of all topics whenever a load has come."""

    def __init__(
        self, brokers: Brokers, announced: AnnouncedState, announce: Callable[[list[KafkaRecord]], None]
    ) -> None:
        self._brokers, self._said, self._announce = brokers, announced, announce
        self._groups: dict[str, dict[str, _Group]] = {}
        self._counted: set[str] = set()
        """Topics that were counted when the loads of all brokers were known."""
        self._was_whole = False
        self._topics_of: dict[str, set[str]] = {}
        """By broker, the topics with consumers in its last load."""
        self._in_grace: set[str] = set()
        """Topics with a consumer that is counted and not attached."""

    @property
    def unread(self) -> int:
        """Number of topics that were never counted with a whole view."""
        return len(self._said.topics.keys() - self._counted)

    def take_load(self, broker: str, now: float, now_ms: int) -> None:
        """Count again what a new load of a broker may have changed."""
        load = self._brokers.known[broker].load
        topics = set(load.consumers) if load is not None else set()
        changed = topics | self._topics_of.get(broker, set()) | self._in_grace
        self._topics_of[broker] = topics
        for left in self._topics_of.keys() - self._brokers.known.keys():
            changed |= self._topics_of.pop(left)
        is_whole = self._is_whole()
        if is_whole and not self._was_whole:
            changed |= self._said.topics.keys()
        self._was_whole = is_whole
        self.count(changed, now, now_ms)

    def count(self, topics: Iterable[str], now: float, now_ms: int) -> None:
        """Announce the consumers of topics, as far as they have changed."""
        is_whole = self._is_whole()
        for name in topics:
            topic = self._said.topics.get(name)
            if topic is None:
                self.forget(name)
                continue
            numbers = self._number(name, topic, is_whole, now)
            if is_whole:
                self._counted.add(name)
            elif name not in self._counted:
                numbers = {**topic.consumers, **numbers}
            self._announce(self._said.consumers(name, numbers, now_ms))

    def forget(self, topic: str) -> None:
        """Forget a topic that is gone."""
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
        """Number of active segments that no load shows."""
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
