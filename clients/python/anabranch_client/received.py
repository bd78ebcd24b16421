"""Received messages, in the manner of `confluent_kafka.Message`, and the batches that they come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
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
    """Messages that were fetched together in one lease, in columns.

    Python's garbage collector visits objects that wait for the application again and again, but not bytes and numbers.
    """

    reader: SegmentReader
    lease: int
    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: list[int]
    headers: list[list[tuple[str, bytes | None]] | None]
    timestamps: list[int]
    """Kind and milliseconds of each."""
    size: int
    """Bytes of the values."""
    delivered: int = 0
    """Number of messages that the application has received."""
    earlier: Mapping[SegmentReader, tuple[int, int]] | None = None
    """Lease and position of every segment when the first message was delivered."""

    @classmethod
    def of(cls, reader: SegmentReader, lease: int, messages: list[Message]) -> Batch:
        """Return a batch of confluent-kafka's messages, which are released."""
        # Methods of the class: by name each call takes five times as long.
        of: Any = Message
        return cls(
            reader,
            lease,
            list(map(of.key, messages)),
            list(map(of.value, messages)),
            list(map(of.offset, messages)),
            list(map(of.headers, messages)),
            list(chain.from_iterable(map(of.timestamp, messages))),
            sum(map(len, messages)),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_valid(self) -> bool:
        """Return whether messages may be delivered: the lease holds, and the segment is not about to be left."""
        return self.lease == self.reader.lease and not self.reader.is_releasing


class ReceivedMessage:
    """A message that a consumer received; give it back to `acknowledge`."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: Batch, index: int) -> None:
        self.batch = batch
        """Internal: the lease in which it may be acknowledged."""
        self.index = index
        """Internal: where it is in the batch."""

    def key(self) -> bytes | None:
        """Return the key."""
        return self.batch.keys[self.index]

    def value(self) -> bytes | None:
        """Return the content."""
        return self.batch.values[self.index]

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers in their order."""
        return self.batch.headers[self.index] or []

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the timestamp, as in confluent-kafka, and its milliseconds."""
        return self.batch.timestamps[2 * self.index], self.batch.timestamps[2 * self.index + 1]

    def segment(self) -> int:
        """Return the id of the message's segment."""
        return self.batch.reader.segment.segment_id

    def offset(self) -> int:
        """Return the offset in the segment's Kafka topic."""
        return self.batch.offsets[self.index]
