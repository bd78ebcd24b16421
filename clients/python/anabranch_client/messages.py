"""Messages on their way to Kafka, and the reports of their delivery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from anabranch_client.errors import AnabranchError

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


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """Report of a message: where it is stored, if it is."""

    topic: str
    key: bytes | None
    value: bytes | None
    segment: int
    kafka_topic: str
    partition: int
    offset: int | None
    """None for a message that was not stored, or whose acknowledgement was repeated without its offset."""
    created_at_ms: int

    @property
    def position(self) -> MessagePosition | None:
        """Position of the message; None without an offset."""
        return None if self.offset is None else MessagePosition(self.created_at_ms, self.segment, self.offset)


OnDelivery: TypeAlias = Callable[[AnabranchError | None, DeliveryReport], Any]
"""Called from `poll` and `flush` with the error, or None, and the report."""


class PendingMessage:
    """A message until its delivery is reported."""

    __slots__ = ("deadline", "hash", "headers", "key", "lane", "number", "on_delivery", "size", "timestamp", "value")

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        on_delivery: OnDelivery | None,
        hash: int | None,
    ) -> None:
        self.key, self.value, self.headers, self.timestamp = key, value, headers, timestamp
        self.on_delivery, self.hash = on_delivery, hash
        self.number = 0
        """Order of acceptance by the producer."""
        self.deadline = float("inf")
        """Time after which it is given up, on the clock `time.monotonic`."""
        self.size = 0
        self.lane: Lane | None = None
        """Lane of the last attempt to send it."""


def copied_headers(headers: Headers) -> Headers:
    """Return headers that the application cannot change any more; a message may be sent again later."""
    return list(headers.items() if isinstance(headers, dict) else headers) if headers else None


def size_of_headers(headers: Headers) -> int:
    """Return the bytes that headers count for."""
    if not headers:
        return 0
    pairs = headers.items() if isinstance(headers, dict) else headers
    return sum(len(name) + len(value or b"") for name, value in pairs)
