"""Messages on their way to Kafka, and the reports of their delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, Message

from anabranch_client.errors import AnabranchError
from anabranch_client.names import PARTITION

if TYPE_CHECKING:
    from anabranch_client.lanes import Lane

Headers: TypeAlias = "list[tuple[str, str | bytes | None]] | dict[str, str | bytes | None] | None"


class MessagePosition(NamedTuple):
    """Position of a message; those of one segment compare in the order of its messages."""

    created_at_ms: int
    """Incarnation of the topic; 0 where the controller records none."""
    segment: int
    offset: int

    def __str__(self) -> str:
        return f"{self.created_at_ms}.{self.segment}.{self.offset}"


class DeliveryReport:
    """Report of a message: where it is stored, if it is."""

    __slots__ = ("key", "lane", "offset", "value")
    key: bytes | None
    value: bytes | None
    offset: int | None
    """None for a message that was not stored, or whose acknowledgement was repeated without its offset."""
    lane: Lane
    """Internal: lane of the segment."""

    @property
    def topic(self) -> str:
        """The scalable topic."""
        return self.lane.layout.topic

    @property
    def segment(self) -> int:
        """Id of the segment."""
        return self.lane.segment.id

    @property
    def kafka_topic(self) -> str:
        """Kafka topic of the segment."""
        return self.lane.segment.kafka_topic

    @property
    def partition(self) -> int:
        """Partition of the Kafka topic."""
        return PARTITION

    @property
    def created_at_ms(self) -> int:
        """Incarnation of the topic; 0 where the controller records none."""
        return self.lane.layout.created_at_ms or 0

    @property
    def position(self) -> MessagePosition | None:
        """Position of the message; None without an offset."""
        return None if self.offset is None else MessagePosition(self.created_at_ms, self.segment, self.offset)

    def __repr__(self) -> str:
        return f"DeliveryReport({self.topic}, segment={self.segment}, offset={self.offset}, key={self.key!r})"


OnDelivery: TypeAlias = Callable[["AnabranchError | None", DeliveryReport], Any]
"""Called from `poll` and `flush` with the error, or None, and the report."""


class DueReport(NamedTuple):
    """A report that has not been called. Plain tuples of this shape serve as well."""

    on_delivery: OnDelivery | None
    error: AnabranchError | None
    key: bytes | None
    value: bytes | None
    offset: int | None
    lane: Lane
    size: int


class PendingMessage:
    """A message that is sent alone, until it ends."""

    __slots__ = (
        "deadline",
        "error",
        "is_accepted",
        "key",
        "lane",
        "number",
        "offset",
        "on_delivery",
        "options",
        "outcomes",
        "size",
        "value",
    )
    key: bytes | None
    value: bytes | None
    options: Mapping[str, Any] | None
    """Time stamp and headers; None without any."""
    on_delivery: OnDelivery | None
    lane: Lane
    """Lane of the last attempt to send it."""
    error: Any
    """Error of librdkafka for the last attempt to send it."""
    offset: int | None
    is_accepted: bool
    """True from the moment in which Kafka's client has it, or in which it waits for a segment."""
    number: int
    """Order of acceptance by the producer."""
    deadline: float
    """Time after which it is given up, on the clock `time.monotonic`."""
    size: int
    outcomes: list[Any]
    """Messages that librdkafka has reported, in their order."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Take the report of librdkafka: a function made for each message would cost more than this."""
        self.error = error
        # librdkafka counts offsets up from -1 for the messages of a batch that was refused.
        self.offset = message.offset() if error is None else None
        self.outcomes.append(self)

    def due(self, error: AnabranchError | None) -> DueReport:
        """Return the report of its end."""
        offset = self.offset if error is None else None
        return DueReport(self.on_delivery, error, self.key, self.value, offset, self.lane, self.size)


def copied_headers(headers: Headers) -> Headers:
    """Return headers that the application cannot change any more; a message may be sent again later."""
    return list(headers.items() if isinstance(headers, dict) else headers) if headers else None


def size_of_headers(headers: Headers) -> int:
    """Return the bytes that headers count for."""
    if not headers:
        return 0
    pairs = headers.items() if isinstance(headers, dict) else headers
    return sum(len(name) + len(value or b"") for name, value in pairs)
