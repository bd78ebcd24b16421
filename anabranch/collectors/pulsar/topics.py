"""Layouts and consumers, topic by topic: announces what differs from the last announcement.

Stage: under `collector`, which asks what `Sweep` names. A topic that is not found is asked for once more before it is
called deleted, for a server's memory may be behind.
"""

from collections.abc import Callable

from anabranch.admin.answers import Answered, Refused, ServerFault
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord
from anabranch.collectors.pulsar.brokers import Brokers
from anabranch.collectors.pulsar.calls import CallAnswer
from anabranch.collectors.pulsar.namespaces import ListedNamespaces
from anabranch.collectors.pulsar.topic_stats import TopicStats
from anabranch.collectors.status import Troubles
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

CONFIRM_SECONDS = 0.5
"""A topic that is not found is asked for once more after so long, before it is called deleted."""


class Topics:
    """Processing of answers about topics and policies, with announcements and new topics handed on."""

    def __init__(
        self,
        brokers: Brokers,
        namespaces: ListedNamespaces,
        announced: AnnouncedState,
        troubles: Troubles,
        announce: Callable[[list[KafkaRecord]], None],
        added: Callable[[str, float], None],
    ) -> None:
        self._brokers, self._namespaces, self._announced, self._troubles = brokers, namespaces, announced, troubles
        self._announce, self._added = announce, added
        self._missing: dict[str, float] = {}
        """Topics that were not found, and since when."""

    @property
    def is_sure(self) -> bool:
        """Return whether no topic waits for a second look."""
        return not self._missing

    def take_policy(self, answer: CallAnswer) -> None:
        """The override of a namespace."""
        namespace, reply = answer.call.key, answer.reply
        if isinstance(reply, Answered) and namespace in self._namespaces.names:
            policy: AutoScalePolicyOverride | None = reply.value
            self._announce(self._announced.policy(namespace, policy, answer.asked_ms))

    def take_layout(self, answer: CallAnswer) -> None:
        """The layout of a topic, with its policy."""
        topic, reply = answer.call.key, answer.reply
        if topic not in self._brokers.layouts:
            return  # gone meanwhile
        if isinstance(reply, Refused) and reply.status == 404 and reply.from_interface:
            self._take_missing(topic, answer)
            return
        self._missing.pop(topic, None)
        if not isinstance(reply, Answered):
            self._troubles.note(("layout", topic), f"the layout of {topic} cannot be read: {reply}")
            return
        self._troubles.note(("layout", topic), None)
        self._brokers.note_layout(topic, answer.asked_at)
        layout: ScalableTopicMetadata = reply.value
        is_new = topic not in self._announced.topics
        records = self._announced.layout(topic, layout, answer.asked_ms)
        self._announce(records)
        if topic in self._announced.too_large:
            trouble = f"the layout of {topic} is too large for a message: it cannot be scaled"
            self._troubles.note(("layout", topic), trouble)
        if records and (sweep := self._brokers.sweep_of(topic)) is not None:
            sweep.heat(topic, answer.answered_at)
        if is_new and topic in self._announced.topics:
            self._added(topic, answer.answered_at)

    def _take_missing(self, topic: str, answer: CallAnswer) -> None:
        if answer.asked_at - self._missing.setdefault(topic, answer.asked_at) < CONFIRM_SECONDS:
            self._brokers.look_at_layout(topic, answer.asked_at + CONFIRM_SECONDS)
            return
        del self._missing[topic]
        self._announce(self._announced.gone(topic, answer.asked_ms))
        self._brokers.remove_topic(topic)
        self._troubles.note(("layout", topic), None)
        for kind in ("leader", "stats"):
            self._troubles.note((kind, topic), None)
        self._namespaces.gone(topic, answer.answered_at)

    def take_leader(self, answer: CallAnswer) -> None:
        """The broker that leads a topic."""
        topic, reply = answer.call.key, answer.reply
        if topic not in self._brokers.layouts:
            return  # gone meanwhile
        if isinstance(reply, Answered) and self._brokers.set_leader(topic, reply.value, answer.asked_at):
            self._troubles.note(("leader", topic), None)
            return
        if isinstance(reply, Refused | ServerFault):
            self._brokers.look_at_layout(topic)
        reason = f"{reply.value} is no broker that is listed" if isinstance(reply, Answered) else reply
        self._troubles.note(("leader", topic), f"the leader of {topic} is not known, nor its consumers: {reason}")

    def take_stats(self, answer: CallAnswer) -> None:
        """The consumers of a topic."""
        topic, reply = answer.call.key, answer.reply
        announced = self._announced.topics.get(topic)
        if topic not in self._brokers.layouts:
            return  # gone meanwhile
        if not isinstance(reply, Answered):
            if isinstance(reply, Refused | ServerFault):
                # Also what M1 says of a topic that is gone.
                self._brokers.look_at_layout(topic)
                self._brokers.lose_leader(topic, answer.answered_at)
            self._troubles.note(("stats", topic), f"the consumers of {topic} cannot be read: {reply}")
            return
        self._troubles.note(("stats", topic), None)
        self._brokers.note_consumers(topic, answer.asked_at)
        stats: TopicStats = reply.value
        if announced is None or topic in self._missing:
            return
        if stats.epoch > announced.layout.epoch:
            self._brokers.look_at_layout(topic)
        types = {
            subscription: type
            for broker in self._brokers.known.values()
            if broker.load is not None
            for subscription in stats.subscriptions
            if (type := broker.load.types.get((topic, subscription)))
        }
        before = announced.consumers
        self._announce(self._announced.consumers(topic, stats.consumers(types), answer.asked_ms))
        if (sweep := self._brokers.sweep_of(topic)) is not None:
            if any(count for _, count in stats.subscriptions.values()):
                sweep.is_used(topic, answer.answered_at)
            if before != announced.consumers:
                sweep.heat(topic, answer.answered_at)
