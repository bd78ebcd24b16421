"""Segment topics on Kafka: one topic per segment, one consumer group per subscription.

Stage: the segment store of a controller that runs on Kafka; names are those of `kafka_names`.

Sealing: Kafka has no terminated topics, but `max.message.bytes=0` refuses every write with MSG_SIZE_TOO_LARGE, leaves
no gap, and is not fatal to an idempotent producer. The broker applies the change shortly after confirming it, so
`terminate` probes until the partition's leader refuses. A probe can never become a message: its time stamp is one that
no segment allows, so an open segment responds with INVALID_TIMESTAMP. The leader checks sizes before it takes the log's
lock, and time stamps under it; the same change therefore also closes the window of time stamps, against a write that
had passed the first check and still waited for the lock. Only then is the end read.

So a producer that gets MSG_SIZE_TOO_LARGE reads the layout again and continues with the child. One whose write had
waited for the lock gets INVALID_TIMESTAMP, or INVALID_RECORD for each message of a batch, and does the same. If its
acknowledgement was lost, its retry is refused, and it writes the message a second time, to the child.

Transactions: so sealed, a segment also refuses the marker that ends one. A transaction that is open then stays open:
readers of committed messages wait there forever, and Kafka's coordinator refuses every later transaction of that
producer's id. This happens even if the segment refused all of its messages, as Kafka adds a segment to a transaction
first. `terminate` waits until none is open, but a producer that opens them without a pause may slip in between.

So a sealed segment of a topic with the property `transactions=true` still takes markers. Its limit is their size, and
Kafka must compress all else with gzip, whose 18 bytes make the smallest message larger than that. Kafka checks sizes
again after compressing, under the lock, and never compresses a marker. `terminate` then waits for what is open. A batch
that its producer has compressed with gzip is not checked again: one that waited for the lock for longer than
`SETTLE_SECONDS` could still come.

Positions: Kafka drops the committed positions of a group without members after `offsets.retention.minutes` (7 days
unless set). Brokers for segments should set it to its maximum, 2147483647; `complaints` reports it if they do not.
"""

import copy
import time
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType, TopicMetadata  # type: ignore[attr-defined]

from anabranch.controller.segments.base import (
    Position,
    SegmentNotFound,
    SegmentStore,
    SegmentStoreError,
    SegmentTopicStats,
    SubscriptionInUse,
    SubscriptionNotFound,
    Target,
    segment_name,
)
from anabranch.controller.segments.kafka_admin import (
    DELAY_SECONDS,
    GROUP_HAS_MEMBERS,
    GROUP_IN_USE,
    NO_GROUP,
    NO_TOPIC,
    KafkaAdmin,
    code_of,
)
from anabranch.controller.segments.kafka_names import adopted_partition, check_fits, kafka_topic
from anabranch.controller.segments.kafka_positions import PARTITION, Positions
from anabranch.controller.segments.kafka_probe import PartitionProbe
from decisions.topic.layout import SegmentLayout
from schemas.kafka.connection import KafkaConnection
from schemas.metadata import HashRange

TIMEOUT_SECONDS = 10.0
"""Longest wait for an answer of the brokers."""
PROBE_SECONDS = 3.0
"""Longest wait when checking that the brokers are reachable."""
MAX_DESCRIBED = 1_000
"""Segments described per request."""
SETTLE_SECONDS = 0.5
"""With replicas, the end is final once stable for this long: accepted writes may still replicate."""

_OPEN = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "3600000",
}
"""Configuration of an open segment: messages never expire, and no probe is accepted."""
MARKER_BYTES = 78
"""Size of the batch that ends a transaction."""
MARKERS_ONLY = {"max.message.bytes": str(MARKER_BYTES), "compression.type": "gzip"}
SEALED = {"max.message.bytes": "0", "message.timestamp.after.max.ms": "0", "message.timestamp.before.max.ms": "0"}
_MIN_OFFSETS_RETENTION_MINUTES = 525_600
"""A year."""
_OFFSETS = "__consumer_offsets"
"""Topic in which Kafka stores the positions of groups."""


class KafkaSegments(SegmentStore):
    """Segments in the cluster at `kafka`; thread-safe."""

    def __init__(self, kafka: KafkaConnection, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Connects at the first use."""
        self._kafka = KafkaAdmin(kafka, timeout_seconds)
        self._positions = Positions(self._kafka)
        self._life: int | None = None
        self._has_transactions = False

    def of_incarnation(self, created_at: int | None) -> "KafkaSegments":
        other = copy.copy(self)
        other._life, other._positions = created_at, Positions(self._kafka, created_at)
        return other

    def of_layout(self, layout: SegmentLayout) -> "KafkaSegments":
        other = self.of_incarnation(layout.created_at_ms)
        other._has_transactions = layout.properties.get("transactions") == "true"
        adopted = {id: adopted_partition(segment.legacy_topic_name) for id, segment in layout.segments.items()}
        partitions = {id: partition for id, partition in adopted.items() if partition is not None}
        other._positions = Positions(self._kafka, layout.created_at_ms, partitions)
        return other

    def answers(self) -> bool:
        # Not `describe_cluster`: it crashes the process if a broker has not rejoined the cluster yet.
        used, timeout = self._kafka.admin, min(self._kafka.timeout, PROBE_SECONDS)
        try:
            self._kafka.known(used.list_topics(_OFFSETS, timeout=timeout))
        except KafkaException:
            self._kafka.had_no_answer(used)
            return False
        return True

    def check_topic(self, topic: str) -> None:
        check_fits(topic, self._life)

    def create(self, topic: str, segment_id: int, hash_range: HashRange, subscriptions: Iterable[str] = ()) -> str:
        segment = segment_name(topic, segment_id, hash_range)
        new = NewTopic(self._name(segment), 1, replication_factor=-1, config=_OPEN)
        with self._kafka.to(f"create {segment}"):
            try:
                self._kafka.answers(
                    self._kafka.admin.create_topics([new], operation_timeout=self._kafka.timeout, **self._kafka.limit)
                )
            except KafkaException as error:
                if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            # The client caches that the topic did not exist until it asks again.
            self._kafka.until(lambda: self._has_leader(segment))
            # The broker that stores the positions may learn of a new topic slightly later.
            self._positions.start(segment, sorted(set(subscriptions)), "earliest", patient=True)
        return segment

    def create_subscription(self, segment: str, subscription: str, position: Position = "earliest") -> None:
        with self._kafka.to(f"create the subscription {subscription} on {segment}"):
            self._must_exist(segment)
            self._positions.start(segment, [subscription], position)

    def set_position(self, segment: str, subscription: str, position: int) -> None:
        with self._kafka.to(f"move the subscription {subscription} on {segment}"):
            self._must_exist(segment)
            self._positions.set(segment, subscription, position)

    def delete_subscription(self, segment: str, subscription: str) -> None:
        with self._kafka.to(f"delete the subscription {subscription} of {segment}"):
            try:
                self._positions.delete(segment, [subscription])
            except KafkaException as error:
                if code_of(error) in GROUP_IN_USE:
                    raise SubscriptionInUse(segment, subscription, self._kafka.where) from None
                raise

    def check_unused(self, segment: str, subscription: str) -> None:
        with self._kafka.to(f"look who reads {segment} with {subscription}"):
            if self._positions.has_members(segment, subscription):
                raise SubscriptionInUse(segment, subscription, self._kafka.where)

    def seek(self, segment: str, subscription: str, target: Target) -> None:
        with self._kafka.to(f"move the subscription {subscription} on {segment}"):
            self._must_exist(segment)
            try:
                was_there = self._positions.move(segment, subscription, None if target == "latest" else target)
            except KafkaException as error:
                if code_of(error) in GROUP_HAS_MEMBERS:
                    raise SubscriptionInUse(segment, subscription, self._kafka.where) from None
                raise
        if not was_there:
            raise SubscriptionNotFound(segment, subscription, self._kafka.where)

    def subscriptions(self, segment: str) -> list[str]:
        with self._kafka.to(f"list the subscriptions of {segment}"):
            self._must_exist(segment)
            return sorted(self._positions.of(segment, self._positions.named(segment)))

    def terminate(self, segment: str) -> int:
        with self._kafka.to(f"terminate {segment}"):
            # Before the probe: a producer's metadata request could create a missing topic automatically.
            replicas = self._must_exist(segment)
            if not self._is_marked(segment):
                if not self._has_transactions:
                    self._wait_for_transactions(segment)
                settings = MARKERS_ONLY if self._has_transactions else SEALED
                self._kafka.again(lambda: self._kafka.change_settings(self._name(segment), settings))
            probe = PartitionProbe(self._kafka, self._positions.partition_of(segment), MARKER_BYTES)
            self._kafka.until(lambda: self._kafka.again(probe.is_refused))
            if self._has_transactions:
                # What was accepted before the change is then in the log.
                time.sleep(SETTLE_SECONDS)
                self._wait_for_transactions(segment)
            return self._settled_end(segment) if replicas > 1 else self._positions.bounds(segment)[1]

    def is_terminated(self, segment: str) -> bool:
        with self._kafka.to(f"ask whether {segment} is terminated"):
            self._must_exist(segment)
            probe = PartitionProbe(self._kafka, self._positions.partition_of(segment), MARKER_BYTES)
            if not (self._is_marked(segment) and self._kafka.again(probe.is_refused)):
                return False
            return not (self._has_transactions and self._positions.has_open_transactions(segment))

    def delete(self, segment: str) -> None:
        with self._kafka.to(f"delete {segment}"):
            name, limit = self._name(segment), self._kafka.limit
            try:
                self._kafka.answers(
                    self._kafka.admin.delete_topics([name], operation_timeout=self._kafka.timeout, **limit)
                )
            except KafkaException as error:
                if code_of(error) not in NO_TOPIC:
                    raise
            # The next broker asked may learn of it slightly later.
            self._kafka.until(lambda: self._topic(segment) is None)
            # Groups with members cannot be deleted: their positions went with the topic, they end by themselves.
            self._positions.delete(segment, self._positions.named(segment), NO_GROUP | GROUP_IN_USE)

    def backlog(self, segment: str, subscription: str) -> int:
        with self._kafka.to(f"read the backlog of {subscription} on {segment}"):
            self._must_exist(segment)
            backlogs = self._positions.backlog(segment, [subscription])
        if subscription not in backlogs:
            raise SubscriptionNotFound(segment, subscription, self._kafka.where)
        return backlogs[subscription]

    def unread(self, segment: str, subscriptions: Iterable[str]) -> Mapping[str, int | None]:
        registered = set(subscriptions)
        with self._kafka.to(f"read what is left of {segment}"):
            self._must_exist(segment)
            backlogs = self._positions.backlog(segment, registered.union(self._positions.named(segment)))
        return {name: backlogs.get(name) for name in sorted(registered | backlogs.keys())}

    def owners(self, segments: Sequence[str]) -> dict[str, str]:
        addresses = {}
        for start in range(0, len(segments), MAX_DESCRIBED):
            some = {self._name(segment): segment for segment in segments[start : start + MAX_DESCRIBED]}
            with self._kafka.to(f"find the owners of {len(some)} segments"):
                asked = self._kafka.admin.describe_topics(TopicCollection(list(some)), **self._kafka.limit)
                for name, answer in asked.items():
                    try:
                        topic = self._kafka.answer(answer)
                    except KafkaException as error:
                        if code_of(error) not in NO_TOPIC:
                            raise
                        continue
                    leader = topic.partitions[PARTITION].leader if topic.partitions else None
                    if leader is not None:
                        host = f"[{leader.host}]" if ":" in leader.host else leader.host
                        addresses[some[name]] = f"{host}:{leader.port}"
        return addresses

    def stats(self, segment: str) -> SegmentTopicStats:
        terminated = self.is_terminated(segment)
        with self._kafka.to(f"read the state of {segment}"):
            first, end = self._positions.bounds(segment)
            return SegmentTopicStats(
                terminated, first, end, self._positions.backlog(segment, self._positions.named(segment))
            )

    def complaints(self) -> list[str]:
        """Return a sentence for each setting of the brokers that endangers segments; empty if there is none."""
        with self._kafka.to("read the brokers' settings"):
            brokers = self._kafka.admin.list_topics(timeout=self._kafka.timeout).brokers
            asked = [ConfigResource(ResourceType.BROKER, str(broker)) for broker in sorted(brokers)]
            settings = self._kafka.answers(self._kafka.admin.describe_configs(asked, **self._kafka.limit))
        messages = []
        if any(int(broker["offsets.retention.minutes"].value) < _MIN_OFFSETS_RETENTION_MINUTES for broker in settings):
            messages.append(
                f"{self._kafka.where} forgets the positions of idle subscriptions; "
                "set offsets.retention.minutes=2147483647 at every broker"
            )
        if any(broker["auto.create.topics.enable"].value != "false" for broker in settings):
            messages.append(
                f"{self._kafka.where} makes deleted segments again for late producers; "
                "set auto.create.topics.enable=false at every broker"
            )
        return messages

    def _name(self, segment: str) -> str:
        return kafka_topic(segment, self._life)

    def _must_exist(self, segment: str) -> int:
        """Return the number of replicas. Raises `SegmentNotFound`."""
        if (topic := self._topic(segment)) is None:
            # That broker may not have learned of it yet, and a missing segment would count as read.
            if not self._is_known_to_the_cluster(segment):
                raise SegmentNotFound(segment, self._kafka.where)
            self._kafka.until(lambda: self._has_leader(segment))
            return self._must_exist(segment)
        partition = topic.partitions.get(self._positions.partition_of(segment).partition)
        return len(partition.replicas) if partition else 1

    def _is_known_to_the_cluster(self, segment: str) -> bool:
        """Ask Kafka's controller, by a dry-run creation, whether the topic exists."""
        new = NewTopic(self._positions.partition_of(segment).topic, 1, replication_factor=-1)
        try:
            self._kafka.answers(self._kafka.admin.create_topics([new], validate_only=True, **self._kafka.limit))
        except KafkaException as error:
            if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return True
        return False

    def _has_leader(self, segment: str) -> bool:
        topic, (_, number) = self._topic(segment), self._positions.partition_of(segment)
        return topic is not None and number in topic.partitions and topic.partitions[number].leader >= 0

    def _topic(self, segment: str) -> TopicMetadata | None:
        """Return the brokers' current metadata of a segment's topic; None if there is none."""
        name = self._positions.partition_of(segment).topic
        topic = self._kafka.known(self._kafka.admin.list_topics(name, timeout=self._kafka.timeout)).topics.get(name)
        return None if topic is None or (topic.error is not None and topic.error.code() in NO_TOPIC) else topic

    def _is_marked(self, segment: str) -> bool:
        """Return whether the configuration says terminated; the leader may not have applied it yet."""
        settings = self._kafka.again(lambda: self._kafka.settings(self._positions.partition_of(segment).topic))
        return is_sealed(settings)

    def _wait_for_transactions(self, segment: str) -> None:
        end = time.monotonic() + self._kafka.timeout
        while self._positions.has_open_transactions(segment):
            if time.monotonic() > end:
                raise SegmentStoreError(
                    f"cannot terminate {segment} in {self._kafka.where}: it has had open transactions for "
                    f"{self._kafka.timeout:g} s; end them, then do it again"
                )
            time.sleep(DELAY_SECONDS)

    def _settled_end(self, segment: str) -> int:
        end, since = self._positions.bounds(segment)[1], time.monotonic()
        while time.monotonic() < since + SETTLE_SECONDS:
            time.sleep(DELAY_SECONDS)
            now = self._positions.bounds(segment)[1]
            if now != end:
                end, since = now, time.monotonic()
        return end


def is_sealed(settings: Mapping[str, str]) -> bool:
    """Return whether a topic has settings by which it takes no messages."""
    return any(all(settings[name] == value for name, value in sealed.items()) for sealed in (SEALED, MARKERS_ONLY))
