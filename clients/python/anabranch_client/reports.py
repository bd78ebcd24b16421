"""Delivery reports of a producer, called outside of librdkafka and of the producer's lock.

So `on_delivery` may raise, and may call every method of the producer. In a callback of confluent-kafka a call of `poll`
would end the process.
"""

from __future__ import annotations

import threading
from collections import deque

from anabranch_client.errors import AnabranchError
from anabranch_client.messages import DeliveryReport, PendingMessage
from anabranch_client.names import PARTITION


class Reports:
    """Accepted messages until their reports are called; all but `call_due` needs the producer's lock."""

    def __init__(self, lock: threading.RLock, topic: str) -> None:
        self._lock, self._topic = lock, topic
        self._ended: deque[tuple[PendingMessage, AnabranchError | None, int | None]] = deque()
        """Messages whose reports have not been called, with error and offset."""
        self._callers: set[int] = set()
        """Threads that are calling reports."""
        self.count = self.bytes = 0
        """Accepted messages that have not been reported, and their size."""

    @property
    def is_calling(self) -> bool:
        """Return whether this thread is inside of a report."""
        return threading.get_ident() in self._callers

    @property
    def unfinished(self) -> int:
        """Number of messages that have not ended."""
        return self.count - len(self._ended)

    @property
    def awaited(self) -> int:
        """Number of messages that a flush waits for: inside of a report, others cannot be reported."""
        return self.unfinished if self.is_calling else self.count

    def accept_message(self, record: PendingMessage) -> None:
        """Count a message."""
        self.count += 1
        self.bytes += record.size

    def end_message(self, record: PendingMessage, error: AnabranchError | None, offset: int | None = None) -> None:
        """End a message; its report follows."""
        self._ended.append((record, error, offset))

    def call_due(self) -> int:
        """Call the reports that are due, unless this thread is inside of one; return their number."""
        thread, called = threading.get_ident(), 0
        if thread in self._callers:
            return 0
        self._callers.add(thread)
        try:
            while self._ended:
                with self._lock:
                    if not self._ended:
                        break
                    record, error, offset = self._ended.popleft()
                    self.count -= 1
                    self.bytes -= record.size
                called += 1
                if record.on_delivery is not None:
                    record.on_delivery(error, self._delivery(record, offset))
        finally:
            self._callers.discard(thread)
        return called

    def _delivery(self, record: PendingMessage, offset: int | None) -> DeliveryReport:
        lane = record.lane
        assert lane is not None
        return DeliveryReport(
            self._topic,
            record.key,
            record.value,
            lane.segment.id,
            lane.segment.kafka_topic,
            PARTITION,
            offset if offset is not None and offset >= 0 else None,
            lane.layout.created_at_ms or 0,
        )
