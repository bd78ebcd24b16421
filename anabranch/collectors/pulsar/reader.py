"""Calls of the collector: each makes one request to one broker and returns the result or a fault.

Stage: under `collector`, whose worker threads make the calls. Nothing is kept here but the way to each broker.
"""

from collections.abc import Collection
from dataclasses import dataclass

from anabranch.admin.answers import Answered, Misdirected, Nonsense, Reply
from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport
from anabranch.collectors.pulsar.broker_stats import BadStats, BrokerLoad, read_broker_stats
from anabranch.collectors.pulsar.segment_stats import read_segment_stats
from anabranch.collectors.pulsar.topic_stats import TopicStats, read_topic_stats
from schemas.kafka.delivery import SegmentDelivery
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

_PERIOD = "statsUpdateFrequencyInSecs"


@dataclass(frozen=True)
class BrokerReader:
    """Requests to one broker; for several threads at once."""

    cluster: ClusterAdmin
    topics: ScalableTopics

    @classmethod
    def over(cls, transport: Transport) -> "BrokerReader":
        """The reader of the server that `transport` leads to."""
        return cls(ClusterAdmin(transport), ScalableTopics(transport))

    def brokers(self, cluster: str, current: Collection[str]) -> "Reply[dict[str, BrokerReader | Misdirected | None]]":
        """Return live brokers with a reader, a fault if they may not be asked, or None if `current`."""
        reply = self.cluster.brokers(cluster)
        if not isinstance(reply, Answered):
            return reply
        return Answered({name: None if name in current else self._beside(name) for name in reply.value})

    def _beside(self, broker: str) -> "BrokerReader | Misdirected":
        transport = self.cluster.at_broker(broker)
        return transport if isinstance(transport, Misdirected) else BrokerReader.over(transport)

    def load(self) -> Reply[BrokerLoad]:
        """The rates of the segments that the broker serves."""
        reply = self.cluster.broker_stats()
        if not isinstance(reply, Answered):
            return reply
        try:
            return Answered(read_broker_stats(reply.value))
        except BadStats as error:
            return Nonsense(str(error))

    def refresh_seconds(self) -> Reply[float]:
        """Time from one computation of the broker's rates to the next, by its settings."""
        reply = self.cluster.broker_configuration()
        if not isinstance(reply, Answered):
            return reply
        try:
            seconds = float(reply.value[_PERIOD])
        except (KeyError, TypeError, ValueError):
            seconds = 0.0
        if not 1 <= seconds <= 86_400:
            return Nonsense(f"the broker's settings have no usable {_PERIOD}")
        return Answered(seconds)

    def layout(self, topic: str) -> Reply[ScalableTopicMetadata]:
        """The layout of a topic, with its policy."""
        reply = self.topics.layout(topic)
        return Answered(reply.value.to_metadata()) if isinstance(reply, Answered) else reply

    def leader(self, topic: str) -> Reply[str]:
        """The broker that leads a topic, as it answers: `host:port`."""
        return self.topics.leader(topic)

    def stats(self, topic: str) -> Reply[TopicStats]:
        """The consumers of a topic."""
        reply = self.topics.stats(topic)
        if not isinstance(reply, Answered):
            return reply
        try:
            return Answered(read_topic_stats(reply.value))
        except ValueError as error:
            return Nonsense(f"the counts of {topic}: {error}")

    def segment_stats(self, topic: str, segment: int) -> Reply[SegmentDelivery | None]:
        """The slow subscription of a segment; None: none is slow."""
        reply = self.topics.segment_stats(topic, segment)
        if not isinstance(reply, Answered):
            return reply
        try:
            return Answered(read_segment_stats(reply.value, segment))
        except ValueError as error:
            return Nonsense(f"segment {segment} of {topic}: {error}")

    def policy(self, namespace: str) -> Reply[AutoScalePolicyOverride | None]:
        """The override of a namespace."""
        reply = self.topics.policy(namespace)
        if not isinstance(reply, Answered):
            return reply
        if reply.value is None:
            return Answered(None)
        try:
            return Answered(AutoScalePolicyOverride.model_validate(reply.value, by_alias=True, by_name=False))
        except ValueError as error:
            return Nonsense(f"the policy of {namespace}: {error}")
