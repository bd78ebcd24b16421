"""Read a scalable topic in order, as one of the consumers of a subscription.

The controller assigns the segments: each belongs to one consumer at a time, and a parent is read to its end before its
children are assigned, so messages of a key arrive in the order in which they were produced, across splits and merges.
Acknowledgement is cumulative over all segments: it covers everything that this consumer received up to that message,
and is stored as the committed offsets of the segments' consumer groups.

Delivery is at least once. What was not acknowledged when a segment moves to another consumer is delivered again there.

| event | effect |
| --- | --- |
| another consumer joins or leaves | segments move: the former owner commits and leaves the segment's group first |
| this consumer restarts under its name within the grace period | it gets its segments back |
| the controller is away | reading and acknowledging go on with the last assignment |
| this consumer freezes, or is cut off, and its segments were given away | Kafka refuses its commits: `AssignmentLost` |

Calls may come from any thread. Callbacks run in the thread that calls `poll` or `consume`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

from anabranch_client.config import check_consumer, split_settings
from anabranch_client.consumer_session import ConsumerSession, Registration
from anabranch_client.controller import Controller
from anabranch_client.errors import AnabranchError, AssignmentLost
from anabranch_client.names import full_name, group_id, kafka_partition, segment_kafka_topic
from anabranch_client.received import Batch, ConsumedSegment, ReceivedMessage
from anabranch_client.segment_consumer import CLOSE_SECONDS, SegmentConsumer
from anabranch_client.segment_reader import SegmentReader

Rebalanced = Callable[["StreamConsumer", list[int]], None]
"""Callback with the ids of the segments that came or go."""
REVOKE_SECONDS = 5.0
"""Time that `on_revoke` has to acknowledge before its segments are left anyhow."""


class StreamConsumer(SegmentConsumer[SegmentReader]):
    """Ordered consumer with cumulative acknowledgement; `close` it, or use it as a context manager."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        subscription: str,
        name: str,
        on_assign: Rebalanced | None = None,
        on_revoke: Rebalanced | None = None,
        on_lost: Rebalanced | None = None,
    ) -> None:
        """Register in the background; a refusal is raised by the next call of `poll` or `consume`.

        `config`: as for confluent-kafka, with `anabranch.controller.url`. `name` is the consumer's own in its
        subscription; keep it across restarts. `on_revoke` may still acknowledge; after `on_lost` the
        unacknowledged messages of those segments belong to others.
        """
        super().__init__()
        settings, self._kafka = split_settings(config)
        check_consumer(self._kafka)
        self.topic, self.subscription, self.name = full_name(topic), subscription, name
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._events: deque[tuple[str, list[SegmentReader]]] = deque()
        self._current: Batch | None = None
        self._delivered: dict[SegmentReader, tuple[int, int]] = {}
        """Lease and position after the last delivered message of each segment."""
        self._acknowledged: Batch | None = None
        """Batch whose earlier positions are acknowledged already."""
        self._failure: AnabranchError | None = None
        registration = Registration(self.topic, subscription, name)
        self._session = ConsumerSession(Controller(settings), registration, self._adopt_assignment, self._fail)
        self._session.start()

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[ReceivedMessage]:
        end = None if timeout < 0 else time.monotonic() + timeout
        while True:
            self._call_back()
            with self._changed:
                self._check_open()
                if not self._changed.wait_for(self._is_ready, _seconds_left(end)):
                    return []
                if not self._is_interrupted():
                    return self._next_messages(num_messages)

    def acknowledge(self, message: ReceivedMessage) -> None:
        """Acknowledge all that was received up to this message, on all segments; stored in the background.

        Raises `AssignmentLost` if the message's segment was given up since: another consumer receives it again.
        """
        batch = message.batch
        with self._changed:
            if batch is not self._acknowledged:
                for reader, (lease, position) in (batch.earlier or {}).items():
                    reader.acknowledge(lease, position)
                self._acknowledged = batch
            if not batch.reader.acknowledge(batch.lease, message.offset() + 1):
                raise AssignmentLost([batch.reader.segment.segment_id])

    @property
    def is_connected(self) -> bool:
        """Return whether the controller is connected; without it the last assignment is in force."""
        return self._session.is_connected

    def _is_ready(self) -> bool:
        if self._is_interrupted():
            return True
        return not self._is_paused and (self._has_current() or any(r.batches for r in self._readers.values()))

    def _is_interrupted(self) -> bool:
        """Return whether there is something to do before the next message."""
        if self._events or self._failure or self._is_closed:
            return True
        return any(reader.error for reader in self._readers.values())

    def _has_current(self) -> bool:
        batch = self._current
        return batch is not None and batch.is_valid and batch.delivered < len(batch)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        super()._check_open()

    def _end_session(self) -> None:
        self._session.close(CLOSE_SECONDS)

    def _next_messages(self, limit: int) -> list[ReceivedMessage]:
        """Take messages of one batch: the current one, or the next of the segment that waits for longest."""
        if limit < 1:
            return []
        if not self._has_current():
            reader = next(reader for reader in self._readers.values() if reader.batches)
            self._current = reader.batches.popleft()
            self._current.earlier = dict(self._delivered)
            # Round robin: the segment goes to the end of the queue.
            self._readers[reader.segment.name] = self._readers.pop(reader.segment.name)
            self._changed.notify_all()
        batch = self._current
        assert batch is not None
        first, batch.delivered = batch.delivered, min(batch.delivered + limit, len(batch))
        messages = list(map(ReceivedMessage, repeat(batch), range(first, batch.delivered)))
        self._delivered[batch.reader] = batch.lease, messages[-1].offset() + 1
        return messages

    def _adopt_assignment(self, assignment: Mapping[str, Any]) -> None:
        """Start readers of new segments and release those that were taken away."""
        segments = {segment.name: segment for segment in self._read_assignment(assignment)}
        with self._changed:
            if self._is_closed:
                return
            revoked = [r for name, r in self._readers.items() if name not in segments or r.is_releasing]
            for reader in revoked:
                self._delivered.pop(reader, None)
                self._end(reader, REVOKE_SECONDS if self._callbacks["revoke"] else 0)
            assigned = [
                self._begin(SegmentReader(segment, self._kafka, self._changed, self._keeps_segment))
                for name, segment in segments.items()
                if name not in self._readers
            ]
            self._queue_event("revoke", revoked)
            self._queue_event("assign", assigned)

    def _read_assignment(self, assignment: Mapping[str, Any]) -> Iterator[ConsumedSegment]:
        life = assignment.get("topicCreatedAt")
        for item in assignment["assignedSegments"]:
            id, range = int(item["segmentId"]), item["hashRange"]
            name = segment_kafka_topic(self.topic, range["start"], range["end"], id, life)
            group = group_id(name, self.subscription)
            yield ConsumedSegment(id, name, group, *kafka_partition(name, item["underlyingTopicName"]))

    def _keeps_segment(self, reader: SegmentReader) -> bool:
        """Return whether a reader whose group is rebalanced joins again: only if the controller says so now."""
        self._queue_event("lost", [reader])
        if self._readers.get(reader.segment.name) is not reader:
            return False
        return self._session.is_connected and not self._is_closed

    def _queue_event(self, event: str, readers: list[SegmentReader]) -> None:
        if readers and (self._callbacks[event] or event == "revoke"):
            self._events.append((event, readers))
            self._changed.notify_all()

    def _call_back(self) -> None:
        """Run the callbacks that are due, outside the lock."""
        while True:
            with self._changed:
                if not self._events:
                    return
                event, readers = self._events.popleft()
            call = self._callbacks[event]
            try:
                if call is not None:
                    call(self, [reader.segment.segment_id for reader in readers])
            finally:
                if event == "revoke":
                    with self._changed:
                        for reader in readers:
                            reader.release()

    def _fail(self, failure: AnabranchError) -> None:
        with self._changed:
            self._failure = failure
            for reader in self._readers.values():
                reader.release()
            self._changed.notify_all()


def _seconds_left(end: float | None) -> float | None:
    """Return the seconds until `end`; None without an end."""
    return None if end is None else max(end - time.monotonic(), 0)
