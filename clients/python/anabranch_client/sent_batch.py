"""Messages that librdkafka has been given together, until they end."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from confluent_kafka import KafkaError, Message

from anabranch_client.messages import OnDelivery, PendingMessage

if TYPE_CHECKING:
    from anabranch_client.lanes import Lane

OVERHEAD_BYTES = 500
"""Counted for each message beside its key, value and headers."""
SmallMessage: TypeAlias = "tuple[bytes, bytes | None, OnDelivery | None]"
"""Value, key and callback."""


class SentBatch:
    """Messages of one lane in columns, as objects for each would cost garbage collection.

    librdkafka reports stored messages of a partition in their order. One that was not stored is found by its key and
    value: those with equal ones stand for each other.
    """

    __slots__ = (
        "_calls",
        "_deadline",
        "_keys",
        "_outcomes",
        "_rest",
        "_sizes",
        "_values",
        "is_listed",
        "lane",
        "number",
        "offsets",
        "size",
        "taken",
    )

    def __init__(
        self, lane: Lane, messages: list[SmallMessage], number: int, deadline: float, outcomes: list[Any]
    ) -> None:
        """`number`: that of the first message. The batch or its messages come into `outcomes` when they end."""
        self.lane, self.number, self._deadline, self._outcomes = lane, number, deadline, outcomes
        self._values, self._keys, self._calls = zip(*messages, strict=True)
        self._sizes = [OVERHEAD_BYTES + len(value) + len(key or b"") for value, key, _ in messages]
        self.size = sum(self._sizes)
        self.offsets: list[int | None] = []
        """Offsets of the messages from the first on, as long as all are stored."""
        self.taken = 0
        """Number of messages whose reports the producer has made."""
        self.is_listed = False
        """True while it is in `outcomes`."""
        self._rest: list[int] | None = None
        """After a failure: messages without an end, which end one by one."""

    def __len__(self) -> int:
        return len(self._values)

    def end(self, error: KafkaError | None, message: Message) -> None:
        """Take a report of librdkafka."""
        if error is None and self._rest is None:
            self.offsets.append(message.offset())
            if not self.is_listed:
                self.is_listed = True
                self._outcomes.append(self)
        else:
            self._outcomes.append(self._end_single(error, message))

    def messages(self) -> list[dict[str, bytes | None]]:
        """Return what `Producer.produce_batch` wants."""
        return [{"value": value, "key": key} for value, key in zip(self._values, self._keys, strict=True)]

    def stored(self) -> list[Any]:
        """Return a `DueReport`, as a plain tuple, of each message that was stored since `taken`."""
        first, end = self.taken, len(self.offsets)
        columns = self._keys, self._values, self.offsets, repeat(self.lane), self._sizes
        parts = [column if isinstance(column, repeat) else column[first:end] for column in columns]
        return list(zip(self._calls[first:end], repeat(None), *parts))

    def singles(self, indices: list[int] | None = None) -> list[PendingMessage]:
        """Return messages that librdkafka does not have, by default all, to be sent one by one."""
        if indices is not None:
            self._rest = sorted(set(range(len(self.offsets), len(self))) - set(indices))
        return [self._single(index) for index in (range(len(self)) if indices is None else indices)]

    def _end_single(self, error: KafkaError | None, message: Message) -> PendingMessage:
        if self._rest is None:
            self._rest = list(range(len(self.offsets), len(self)))
        key, value = message.key(), message.value()
        alike = (index for index in self._rest if (self._keys[index], self._values[index]) == (key, value))
        index = self._rest[0] if error is None else next(alike, self._rest[0])
        self._rest.remove(index)
        record = self._single(index)
        record.error, record.offset = error, message.offset() if error is None else None
        return record

    def _single(self, index: int) -> PendingMessage:
        record = PendingMessage()
        record.key, record.value, record.on_delivery = self._keys[index], self._values[index], self._calls[index]
        record.options, record.offset, record.size = None, None, self._sizes[index]
        record.number, record.deadline = self.number + index, self._deadline
        record.lane, record.outcomes, record.is_accepted = self.lane, self._outcomes, False
        return record
