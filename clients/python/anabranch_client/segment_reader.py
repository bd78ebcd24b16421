"""Read one segment as the member of its consumer group.

Stage: below `stream_consumer`, one thread and one Kafka consumer per segment. A segment is a topic of one partition,
and its group holds the position of the subscription, so Kafka's own generations fence: whoever holds the partition of
the group's newest generation owns the segment, and a commit of any earlier generation is refused by the broker.

One period of ownership is a lease. A lease ends when the group is rebalanced, when the member is expelled, and when the
reader is released. Everything delivered in a lease can only be acknowledged in it: the next owner, which may be the
same reader, starts at the committed position.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from anabranch_client.config import kafka_client
from anabranch_client.received import Batch, ConsumedSegment

log = logging.getLogger(__name__)

BATCH_MESSAGES = 500
"""Most messages of one batch: fewer than new objects set off Python's garbage collector, 700."""
MAX_BATCHES = 4
"""Batches that wait for the application before the reader stops fetching."""
MAX_BATCH_BYTES = 8 * 1_048_576
"""Their size with which it stops as well; librdkafka holds as much again."""
POLL_SECONDS = 0.1
"""Longest wait for a message; acknowledgements wait as long for their commit."""
PAUSE_SECONDS = 1.0
"""Time with full batches after which Kafka is told to pause, so that the member still answers rebalances."""
COMMIT_SECONDS = 0.1
"""Shortest time between two commits of a reader, unless someone waits for them."""
FENCED = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED}
)
"""Answers of Kafka to the commit of a member that has lost the segment."""
FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})
"""Answers of Kafka that do not pass by themselves."""
_GROUP_OPTIONS = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 500,
    "topic.metadata.refresh.interval.ms": 5_000,
    "queued.max.messages.kbytes": 8_192,
}
"""Defaults of the member. The session timeout is the least that brokers accept by default, so that a killed member
makes room within the controller's grace period."""


class SegmentReader:
    """Thread that fetches a segment and commits what was acknowledged. All state is guarded by `changed`."""

    def __init__(
        self,
        segment: ConsumedSegment,
        kafka: Mapping[str, Any],
        changed: threading.Condition,
        keeps: "Callable[[SegmentReader], bool]",
    ) -> None:
        """`keeps`: the reader stays in the group through a rebalance. Raises `ClientSettingsError`."""
        self.segment = segment
        self.lease = 0
        self.is_owner = False
        self.has_ended = False
        self.batches: deque[Batch] = deque()
        self.acknowledged = self.committed = -1
        """Positions of this lease; -1: none yet."""
        self.unstored = False
        """True if a lease ended with acknowledgements that were not committed."""
        self.error: KafkaError | None = None
        """Fault that ended the reader."""
        self._changed, self._keeps = changed, keeps
        self._fetched = self._end = -1
        """Position after the last fetched message, and the end of the segment when it was reached."""
        self._release_at: float | None = None
        self._hurry = self._is_paused = False
        self._last_commit = 0.0
        self._full_since: float | None = None
        own = {"group.id": segment.group, "client.id": segment.kafka_topic[:200]}
        self._consumer = kafka_client(Consumer, {**_GROUP_OPTIONS, **kafka, **own})
        self._thread = threading.Thread(target=self._run, name=f"segment {segment.segment_id}", daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the end after `release`."""
        self._thread.join(timeout)

    @property
    def is_releasing(self) -> bool:
        """Return whether the segment is about to be left."""
        return self._release_at is not None

    @property
    def has_uncommitted(self) -> bool:
        """Return whether acknowledgements wait for their commit."""
        return self.acknowledged > self.committed

    def release(self, within_seconds: float = 0.0) -> None:
        """Commit and leave the group, at the latest after `within_seconds`; nothing more is delivered."""
        until = time.monotonic() + within_seconds
        self._release_at = until if self._release_at is None else min(self._release_at, until)
        self.batches.clear()
        self._changed.notify_all()

    def acknowledge(self, lease: int, position: int) -> bool:
        """Move the acknowledged position forward; return False if the lease has ended."""
        if lease != self.lease or not self.is_owner:
            return False
        if position > self.acknowledged:
            self.acknowledged = position
        return True

    def hurry(self) -> None:
        """Commit now."""
        self._hurry = True
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                [self.segment.kafka_topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while self._goes_on():
                self._commit()
                if self._has_room():
                    self._fetch_batch()
            self._commit(now=True)
        except KafkaException as error:
            log.error("segment %s cannot be read: %s", self.segment.kafka_topic, error)
            self.error = error.args[0]
        except Exception as error:
            log.exception("segment %s cannot be read", self.segment.kafka_topic)
            self.error = KafkaError(KafkaError._FAIL, repr(error))
        finally:
            with self._changed:
                self._end_lease()
            self._consumer.close()
            with self._changed:
                self.has_ended = True
                self._changed.notify_all()

    def _goes_on(self) -> bool:
        with self._changed:
            return self._release_at is None or time.monotonic() < self._release_at

    def _has_room(self) -> bool:
        """Wait briefly for room; tell Kafka to pause when the application takes nothing for long."""
        with self._changed:
            is_full = self._is_full() or self.is_releasing
            if is_full:
                self._changed.wait_for(lambda: self._hurry or not self._is_full(), POLL_SECONDS / 2)
        now = time.monotonic()
        if not is_full:
            self._full_since = None
            if self._is_paused and self.is_owner:
                self._consumer.resume(self._consumer.assignment())
                self._is_paused = False
            return True
        self._full_since = self._full_since or now
        if now - self._full_since < PAUSE_SECONDS:
            return False
        if not self._is_paused:
            self._consumer.pause(self._consumer.assignment())
            self._is_paused = True
        if (message := self._consumer.poll(0)) is not None:
            self._add_messages([message])
        return False

    def _is_full(self) -> bool:
        return len(self.batches) >= MAX_BATCHES or sum(batch.size for batch in self.batches) >= MAX_BATCH_BYTES

    def _fetch_batch(self) -> None:
        """Add those messages that are here already, or wait for one."""
        lease = self.lease
        if not (messages := self._consumer.consume(BATCH_MESSAGES, 0)):
            first = self._consumer.poll(POLL_SECONDS / 2)
            self._add_messages([] if first is None else [first])
        elif lease == self.lease:
            self._add_messages(messages)
        elif self.is_owner:
            # A rebalance came between these messages, and nothing tells which of them are of the new lease.
            self._rewind()

    def _rewind(self) -> None:
        """Begin the lease again at the committed position, once the group's coordinator names it."""
        while self._goes_on():
            try:
                (stored,) = self._consumer.committed([self.segment.at()])
                error = stored.error
            except KafkaException as failure:
                error = failure.args[0]
            if error is None:
                self._consumer.assign([self.segment.at(stored.offset if stored.offset >= 0 else OFFSET_BEGINNING)])
                return
            if error.fatal() or error.code() in FORBIDDEN:
                raise KafkaException(error)
            log.warning("segment %s: the position is not known yet: %s", self.segment.kafka_topic, error)
            time.sleep(POLL_SECONDS)

    def _add_messages(self, messages: list[KafkaMessage]) -> None:
        if any(map(KafkaMessage.error, messages)):
            messages = self._without_events(messages)
        if not messages:
            return
        with self._changed:
            self._fetched = (messages[-1].offset() or 0) + 1
            if self.is_owner and not self.is_releasing:
                self.batches.append(Batch.of(self, self.lease, messages))
                self._changed.notify_all()

    def _without_events(self, fetched: list[KafkaMessage]) -> list[KafkaMessage]:
        """Return the messages; note the end of the segment. Raises what does not pass by itself."""
        messages = []
        for message in fetched:
            if (error := message.error()) is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._end = message.offset() or 0
            elif error.fatal() or error.code() in FORBIDDEN:
                raise KafkaException(error)
            else:
                log.warning("segment %s: %s", self.segment.kafka_topic, error)
        return messages

    def _position_to_commit(self) -> int:
        """Return the position to commit: past trailing records of transactions once all is acknowledged."""
        return max(self.acknowledged, self._end) if self.acknowledged >= self._fetched else self.acknowledged

    def _commit(self, now: bool = False) -> None:
        """Commit what was acknowledged in this lease."""
        with self._changed:
            lease, position, hurried = self.lease, self._position_to_commit(), self._hurry or now
            self._hurry = False
            if not self.is_owner or position <= self.committed:
                return
        if not hurried and time.monotonic() - self._last_commit < COMMIT_SECONDS:
            return
        self._last_commit = time.monotonic()
        try:
            (stored,) = self._consumer.commit(offsets=[self.segment.at(position)], asynchronous=False)
            error = stored.error
        except KafkaException as failure:
            error = failure.args[0]
        with self._changed:
            if error is None:
                if lease == self.lease:
                    self.committed = max(self.committed, position)
            elif error.code() in FENCED:
                self._end_lease()
            else:
                log.warning("segment %s: the position is not stored yet: %s", self.segment.kafka_topic, error)
            self._changed.notify_all()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        # The group has all partitions of an adopted topic, and this reader fetches one of them.
        own = [each for each in partitions if each.partition == self.segment.partition]
        if len(own) < len(partitions):
            self._consumer.assign(own)
        if self._is_paused:
            # librdkafka keeps a partition paused beyond its assignment.
            self._consumer.resume(own)
            self._is_paused = False
        with self._changed:
            if own and not self.is_releasing:
                self.lease += 1
                self.is_owner = True
                self.acknowledged = self.committed = self._fetched = self._end = -1
                self._changed.notify_all()

    def _revoked(self, _: Consumer, __: list[TopicPartition]) -> None:
        """Store what was acknowledged while the generation still counts, then give the lease up."""
        self._commit(now=True)
        self._lost(_, __)

    def _lost(self, _: Consumer, __: list[TopicPartition]) -> None:
        with self._changed:
            if self._end_lease() and not self.is_releasing and not self._keeps(self):
                self.release()

    def _end_lease(self) -> bool:
        """End the lease; return whether there was one."""
        if had_lease := self.is_owner:
            self.unstored |= self.has_uncommitted
            self.lease += 1
            self.is_owner = False
            self.batches.clear()
            self._changed.notify_all()
        return had_lease
