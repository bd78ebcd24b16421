"""Received messages, in the manner of `confluent_kafka.Message`, and the batches that they come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

if TYPE_CHECKING:
    from anabranch_client.segment_reader import SegmentReader


@dataclass(frozen=True)
class ConsumedSegment:
    """A segment of an assignment, and where it is in Kafka."""

    segment_id: int
    name: str
    group: str
    kafka_topic: str
    partition: int

    def at(self, offset: int = OFFSET_INVALID) -> TopicPartition:
        """Return a position in it."""
        return TopicPartition(self.kafka_topic, self.partition, offset)


@dataclass(eq=False)
class Batch:
    """Messages that were fetched together in one lease."""

    reader: SegmentReader
    lease: int
    messages: list[Message]
    size: int
    """Bytes of the values."""
    delivered: int = 0
    """Number of messages that the application has received."""
    earlier: Mapping[SegmentReader, tuple[int, int]] | None = None
    """Lease and position of every segment when the first message was delivered."""

    @property
    def is_valid(self) -> bool:
        """Return whether messages may be delivered: the lease holds, and the segment is not about to be left."""
        return self.lease == self.reader.lease and not self.reader.is_releasing


class ReceivedMessage:
    """A message that a consumer received; give it back to `acknowledge`."""

    __slots__ = ("_message", "batch")

    def __init__(self, message: Message, batch: Batch) -> None:
        self._message = message
        self.batch = batch
        """Internal: the lease in which it may be acknowledged."""

    def key(self) -> bytes | None:
        """Return the key."""
        return self._message.key()

    def value(self) -> bytes | None:
        """Return the content."""
        return self._message.value()

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers in their order."""
        headers: Any = self._message.headers()
        return headers or []

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the timestamp, as in confluent-kafka, and its milliseconds."""
        return self._message.timestamp()

    def segment(self) -> int:
        """Return the id of the message's segment."""
        return self.batch.reader.segment.segment_id

    def offset(self) -> int:
        """Return the offset in the segment's Kafka topic."""
        return self._message.offset() or 0
