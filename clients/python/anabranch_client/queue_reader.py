"""Read one segment for a queue consumer, until a sealed one is read and acknowledged.

Stage: below `queue_consumer`, a `segment_reader` each. Kafka stores one position per segment, so the position is the
lowest unacknowledged offset; what was acknowledged beyond it comes again after a crash.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Condition
from typing import Any

from confluent_kafka import KafkaException

from anabranch_client.received import ConsumedSegment
from anabranch_client.segment_reader import SegmentReader

KAFKA_SECONDS = 10.0
"""Longest wait for the end of a segment."""


class OffsetWindow:
    """Offsets of a lease that were delivered and not acknowledged. Pure."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self._offsets: OrderedDict[int, None] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    @property
    def position(self) -> int:
        """Position to commit: every offset below it is acknowledged."""
        return next(iter(self._offsets), self._next)

    def deliver(self, offsets: list[int]) -> None:
        """Add offsets in their order, greater than all before."""
        self._offsets.update(dict.fromkeys(offsets))
        self._next = offsets[-1] + 1

    def acknowledge(self, offset: int) -> None:
        """Remove an offset; idempotent."""
        self._offsets.pop(offset, None)


class QueueReader(SegmentReader):
    """Reader that stays in the group, and ends when a sealed segment is read and acknowledged."""

    def __init__(self, segment: ConsumedSegment, kafka: Mapping[str, Any], changed: Condition) -> None:
        """Raises `ClientSettingsError`."""
        super().__init__(segment, kafka, changed, lambda _: True)
        self.is_sealed = False
        """True once the layout says so: the end that Kafka names from then on is final."""
        self.window = OffsetWindow(0)

    def window_of(self, lease: int) -> OffsetWindow:
        """Return the window of the present lease."""
        if self.window.lease != lease:
            self.window = OffsetWindow(lease)
        return self.window

    def holds(self, lease: int) -> bool:
        """Return whether messages of a lease may be acknowledged."""
        return self.is_owner and self.lease == lease

    @property
    def unacknowledged(self) -> int:
        """Number of messages that were delivered in the present lease and not acknowledged."""
        return len(self.window) if self.holds(self.window.lease) else 0

    def _goes_on(self) -> bool:
        return super()._goes_on() and not self._is_drained()

    def _is_drained(self) -> bool:
        with self._changed:
            if not self.is_sealed or not self.is_owner or self.batches or not 0 <= self._end <= self.committed:
                return False
        try:
            bounds = self._consumer.get_watermark_offsets(self.segment.at(), KAFKA_SECONDS)
        except KafkaException:
            return False
        with self._changed:
            return bounds is not None and self.is_owner and self.committed >= bounds[1]
