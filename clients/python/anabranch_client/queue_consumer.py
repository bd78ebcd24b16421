"""Read a scalable topic without order; every message is acknowledged by itself.

The controller assigns nothing: every consumer of a subscription joins the group of every segment, active and sealed
ones, and Kafka gives each segment to one of them. New segments come with the layout; a sealed one is left when it is
read and acknowledged.

Delivery is at least once. A negatively acknowledged message comes again to this consumer; one of a consumer that ends
comes again to the segment's next one, with those after it that were acknowledged already. At most `max_unacknowledged`
messages are delivered and not acknowledged, and no message that far behind the oldest of them in its segment.

Calls may come from any thread.
"""

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from itertools import repeat
from threading import Condition
from typing import Any

from confluent_kafka import KafkaException

from anabranch_client.config import check_consumer, split_settings
from anabranch_client.controller import Controller
from anabranch_client.errors import AssignmentLost, TopicRemoved
from anabranch_client.layout import Layout, LayoutSegment
from anabranch_client.names import group_id
from anabranch_client.received import ConsumedSegment, ReceivedMessage
from anabranch_client.segment_consumer import SegmentConsumer
from anabranch_client.segment_reader import SegmentReader
from anabranch_client.watch import LayoutWatch

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
    """Reader that stays in the group, and ends when a sealed segment is read and acknowledged.

    Kafka stores one position per segment, so the position is the lowest unacknowledged offset; what was acknowledged
    beyond it comes again after a crash.
    """

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


FIRST_LAYOUT_SECONDS = 30.0
"""Longest wait for the first layout."""
MAX_UNACKNOWLEDGED = 10_000
MAX_SEALED_READERS = 16
"""Sealed segments that are read at once, oldest first: each needs a Kafka client."""
TICK_SECONDS = 0.5
"""Longest wait before readers are looked at again."""


class QueueConsumer(SegmentConsumer[QueueReader]):
    """Unordered consumer with individual acknowledgement; `close` it, or use it as a context manager."""

    def __init__(
        self, config: Mapping[str, Any], topic: str, subscription: str, max_unacknowledged: int = MAX_UNACKNOWLEDGED
    ) -> None:
        """Wait for the layout. `config`: confluent-kafka's, and a controller's URL. Raises `AnabranchError`."""
        super().__init__()
        settings, self._kafka = split_settings(config)
        check_consumer(self._kafka)
        self.subscription, self._most = subscription, max_unacknowledged
        self._finished: set[str] = set()
        """Names of sealed segments that are read."""
        self._again: OrderedDict[tuple[QueueReader, int, int], ReceivedMessage] = OrderedDict()
        """Negatively acknowledged messages by reader, lease and offset."""
        self._is_new_turn = False
        """True after repeated messages: then new ones come first."""
        self._layout: Layout | None = None
        self._watch = LayoutWatch(Controller(settings), topic, self._wake_up)
        self.topic = self._watch.topic
        try:
            self._watch.first(FIRST_LAYOUT_SECONDS)
            with self._changed:
                self._follow_layout()
        except BaseException:
            self.close()
            raise

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[ReceivedMessage]:
        end = float("inf") if timeout < 0 else time.monotonic() + timeout
        with self._changed:
            while True:
                self._check_open()
                self._follow_layout()
                messages = [] if self._is_paused else self._take_messages(num_messages)
                left = end - time.monotonic()
                if messages or left <= 0:
                    return messages
                self._changed.wait(min(left, TICK_SECONDS))

    def acknowledge(self, message: ReceivedMessage) -> None:
        """Acknowledge this message alone; stored in the background.

        Raises `AssignmentLost` if its segment was given up since: another consumer receives it again.
        """
        with self._changed:
            reader, lease = self._reader_of(message), message.batch.lease
            if not reader.holds(lease):
                raise AssignmentLost([reader.segment.segment_id])
            window = reader.window_of(lease)
            window.acknowledge(message.offset())
            reader.acknowledge(lease, window.position)
            self._changed.notify_all()

    def negative_acknowledge(self, message: ReceivedMessage) -> None:
        """Let the message come again: here, or at the next owner if its segment was given up since."""
        with self._changed:
            reader = self._reader_of(message)
            self._again[reader, message.batch.lease, message.offset()] = message
            self._changed.notify_all()

    def _end_session(self) -> None:
        self._watch.close()

    def _wake_up(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _follow_layout(self) -> None:
        """Begin with the segments of the newest layout, and leave those that are read or pruned."""
        if (layout := self._watch.layout) is None:
            raise (self._watch.error or TopicRemoved(self.topic)).with_traceback(None)
        ended = [name for name, reader in self._readers.items() if reader.has_ended]
        if layout is self._layout and not ended:
            return
        for name in ended:
            del self._readers[name]
            self._finished.add(name)
        segments = {segment.name: segment for segment in layout.segments.values()}
        self._finished &= segments.keys()
        for name in self._readers.keys() - segments.keys():
            self._end(self._readers[name])
        for name, reader in self._readers.items():
            reader.is_sealed = not segments[name].is_active
        room = MAX_SEALED_READERS - sum(reader.is_sealed for reader in self._readers.values())
        for segment in sorted(segments.values(), key=lambda segment: segment.id):
            if segment.name in self._readers or segment.name in self._finished:
                continue
            room -= not segment.is_active
            if segment.is_active or room >= 0:
                self._start_reader(segment)
        # Last: if a reader cannot be started, the next call tries again.
        self._layout = layout

    def _start_reader(self, segment: LayoutSegment) -> None:
        group = group_id(segment.name, self.subscription)
        consumed = ConsumedSegment(segment.id, segment.name, group, segment.kafka_topic, segment.partition)
        reader = QueueReader(consumed, self._kafka, self._changed)
        reader.is_sealed = not segment.is_active
        self._begin(reader)

    def _take_messages(self, limit: int) -> list[ReceivedMessage]:
        """Take repeated or new messages, in turn where there are both: one that always fails does not stop the rest."""
        sources = [self._repeated_messages, self._next_messages]
        if self._is_new_turn:
            sources.reverse()
        if messages := sources[0](limit):
            self._is_new_turn = not self._is_new_turn
            return messages
        return sources[1](limit)

    def _repeated_messages(self, limit: int) -> list[ReceivedMessage]:
        """Take messages that were negatively acknowledged, if they may still be acknowledged here."""
        messages: list[ReceivedMessage] = []
        while self._again and len(messages) < limit:
            (reader, lease, offset), message = self._again.popitem(last=False)
            if reader.holds(lease) and offset in reader.window_of(lease):
                messages.append(message)
        return messages

    def _next_messages(self, limit: int) -> list[ReceivedMessage]:
        """Take messages of the segment that waits for longest, as far as the window allows."""
        limit = min(limit, self._most - sum(reader.unacknowledged for reader in self._readers.values()))
        for name, reader in list(self._readers.items()):
            if limit <= 0 or not reader.batches:
                continue
            batch = reader.batches[0]
            window, offsets = reader.window_of(batch.lease), batch.offsets[batch.delivered : batch.delivered + limit]
            oldest = window.position if len(window) else offsets[0]
            if not (offsets := offsets[: bisect_left(offsets, oldest + self._most)]):
                continue
            window.deliver(offsets)
            first, batch.delivered = batch.delivered, batch.delivered + len(offsets)
            if batch.delivered == len(batch):
                reader.batches.popleft()
            self._readers[name] = self._readers.pop(name)
            self._changed.notify_all()
            return list(map(ReceivedMessage, repeat(batch), range(first, batch.delivered)))
        return []

    def _reader_of(self, message: ReceivedMessage) -> QueueReader:
        reader = message.batch.reader
        assert isinstance(reader, QueueReader)
        return reader
