"""Read a scalable topic with positions that the application keeps itself, as connectors do.

One consumer reads all segments, sealed ones included: a segment begins when its parents are read to their end, so
messages of a key arrive in order. It joins no group, commits nothing, and needs the controller only for layouts.
`checkpoint` returns the position after the last message received, over all segments at once.

The controller prunes sealed segments: a subscription of type CHECKPOINT keeps them for
`controller.checkpoint_retention_seconds`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from anabranch_client.checkpoints import Checkpoint, Frontier
from anabranch_client.config import kafka_client, split_settings
from anabranch_client.controller import Controller
from anabranch_client.errors import ClientClosed, SegmentUnreadable, TopicRemoved
from anabranch_client.layout import LayoutSegment
from anabranch_client.watch import LayoutWatch

FIRST_LAYOUT_SECONDS = 30.0
"""Longest wait for the first layout."""
KAFKA_SECONDS = 30.0
"""Longest wait for an answer of Kafka about offsets."""
SLICE_SECONDS = 0.1
"""Longest wait for messages before layouts are looked at again."""
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # From a broker that has just begun to lead, or has not learned yet that it does.
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        # Of a new topic that a broker has not learned of, and of every topic while no broker can be reached.
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Answers that pass by themselves, unless the segment is deleted."""
_OPTIONS = {
    "group.id": "anabranch-checkpoints",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
"""librdkafka asks for a group; it is never joined, and nothing is committed."""

T = TypeVar("T")


class _FairLock:
    """Lock that a thread which takes it again and again, as `consume` does, cannot keep from others."""

    def __init__(self) -> None:
        self._turnstile, self._lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._turnstile:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class CheckpointConsumer:
    """Ordered reader with external positions. Thread-safe; `close` it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, Any], topic: str, checkpoint: bytes | None = None) -> None:
        """Begin at `checkpoint`, or with the oldest retained message.

        `config`: as for confluent-kafka, with `anabranch.controller.url`. Waits for the layout. Raises
        `AnabranchError`: `CheckpointUnreadable`, `CheckpointOfOtherTopic`, `CheckpointExpired`, `TopicNotFound`, …
        """
        restored = None if checkpoint is None else Checkpoint.from_bytes(checkpoint)
        settings, kafka = split_settings(config)
        self._lock = _FairLock()
        self._is_paused = self._is_closed = False
        self._watch = LayoutWatch(Controller(settings), topic)
        try:
            self._frontier = Frontier(self._watch.first(FIRST_LAYOUT_SECONDS), restored)
            self._consumer = kafka_client(Consumer, {**kafka, **_OPTIONS})
        except BaseException:
            self._watch.close()
            raise
        self._reading: dict[tuple[str, int], LayoutSegment] = {}
        """Assigned segments by Kafka topic and partition."""
        self._ends: dict[int, int] = {}
        """Ends that were reached, by segment id."""
        self._fault: SegmentUnreadable | None = None
        """Fault to raise by the next call: the messages that came before it are returned first."""
        self._lasting_fault: SegmentUnreadable | None = None
        """Fault of every call until `seek`: librdkafka reads no more of the segment, and reports it once."""
        self._must_assign = True
        """False while no further segment can have become readable."""

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message, or None after `timeout` seconds; below 0 it waits for ever."""
        messages = self.consume(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to `num_messages` as soon as there are some, or none after `timeout` seconds.

        Raises `AnabranchError` when the reader cannot go on.
        """
        end = float("inf") if timeout < 0 else time.monotonic() + timeout
        while True:
            with self._lock:
                messages = self._consume_messages(num_messages, max(min(end - time.monotonic(), SLICE_SECONDS), 0))
            if messages or time.monotonic() >= end:
                return messages

    def checkpoint(self) -> bytes:
        """Return the position after the last message that was received, to give to another consumer later."""
        with self._lock:
            return self._frontier.checkpoint().to_bytes()

    def seek(self, timestamp_ms: int) -> None:
        """Go on with the first messages at or after a time, forwards or backwards."""
        with self._lock:
            self._check_open()
            self._follow_layout()
            frontier = Frontier(self._frontier.layout)
            moved: set[int] = set()
            while waiting := frontier.readable().keys() - moved:
                for id in waiting:
                    moved.add(id)
                    segment = frontier.layout.segments[id]
                    offset, last = self._offset_at(segment, max(timestamp_ms, 0))
                    frontier.advance(id, offset)
                    if offset >= last and not segment.is_active:
                        frontier.finish(id)
            self._unassign(list(self._reading))
            self._frontier, self._must_assign, self._fault = frontier, True, None
            self._lasting_fault = None

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Deliver again."""
        with self._lock:
            self._is_paused = False

    def close(self) -> None:
        """Stop reading. Idempotent; `checkpoint` still answers."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._consumer.close()
        self._watch.close()

    def __enter__(self) -> "CheckpointConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _consume_messages(self, limit: int, timeout: float) -> list[Message]:
        self._check_open()
        fault, self._fault = self._fault or self._lasting_fault, None
        if fault is not None:
            raise fault.with_traceback(None)
        self._follow_layout()
        # Everything that may fail comes before the messages: the frontier passes them only if they are returned.
        for id, end in list(self._ends.items()):
            self._finish_segment(id, end)
        if self._must_assign:
            self._assign_segments()
        if self._is_paused:
            time.sleep(timeout)
            return []
        messages = self._consumer.consume(limit, timeout)
        # Methods of the class: by name each call takes five times as long.
        of: Any = Message
        last = dict(zip(zip(map(of.topic, messages), map(of.partition, messages), strict=True), messages, strict=True))
        if any(map(of.error, messages)) or not last.keys() <= self._reading.keys():
            return [message for message in messages if self._accept_message(message)]
        # The last message of each segment passes those before it: one by one they would cost as much again as Kafka.
        for message in last.values():
            self._accept_message(message)
        return messages

    def _accept_message(self, message: Message) -> bool:
        """Note where a message leaves the segment; return whether it is the application's."""
        error, segment, offset = message.error(), self._segment_of(message), message.offset() or 0
        if error is None:
            if segment is None:
                return False
            self._ends.pop(segment.id, None)
            self._frontier.advance(segment.id, offset + 1)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            if segment is not None:
                self._ends[segment.id] = offset
        elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._fault = SegmentUnreadable(message.topic() or "a segment", str(error))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            reason = f"Kafka no longer has the messages at its position ({error}): seek by time"
            self._lasting_fault = SegmentUnreadable(message.topic() or "a segment", reason)
        return False

    def _finish_segment(self, id: int, end: int) -> None:
        """End a sealed segment whose final end was reached: its children follow."""
        segment = self._frontier.layout.segments.get(id)
        if segment is None or segment.is_active:
            return
        if end >= self._offset_bounds(segment)[1]:
            self._frontier.finish(id)
            self._must_assign = True
            self._unassign([(segment.kafka_topic, segment.partition)])
        self._ends.pop(id, None)

    def _follow_layout(self) -> None:
        if (layout := self._watch.layout) is None:
            raise (self._watch.error or TopicRemoved(self._frontier.layout.topic)).with_traceback(None)
        if layout.created_at_ms != self._frontier.layout.created_at_ms:
            raise TopicRemoved(layout.topic)
        if layout is not self._frontier.layout:
            self._frontier.follow(layout)
            self._must_assign = True

    def _assign_segments(self) -> None:
        """Begin with the segments whose turn has come."""
        begun = {segment.id for segment in self._reading.values()}
        starts = {
            id: self._offset_bounds(self._frontier.layout.segments[id])[0] if offset is None else offset
            for id, offset in self._frontier.readable().items()
            if id not in begun
        }
        segments = {id: self._frontier.layout.segments[id] for id in starts}
        if starts:
            self._consumer.incremental_assign(
                [TopicPartition(segment.kafka_topic, segment.partition, starts[id]) for id, segment in segments.items()]
            )
        for id, segment in segments.items():
            self._frontier.advance(id, starts[id])
            self._reading[segment.kafka_topic, segment.partition] = segment
        self._must_assign = False

    def _unassign(self, partitions: list[tuple[str, int]]) -> None:
        if partitions:
            self._consumer.incremental_unassign([TopicPartition(*partition) for partition in partitions])
        for partition in partitions:
            self._ends.pop(self._reading.pop(partition).id, None)

    def _segment_of(self, message: Message) -> LayoutSegment | None:
        return self._reading.get((message.topic() or "", message.partition() or 0))

    def _offset_bounds(self, segment: LayoutSegment) -> tuple[int, int]:
        """Return the first offset of a segment, and its end. Raises `SegmentUnreadable`."""
        partition = TopicPartition(segment.kafka_topic, segment.partition)
        bounds = self._ask_kafka(segment, lambda timeout: self._consumer.get_watermark_offsets(partition, timeout))
        if bounds is None:
            raise SegmentUnreadable(segment.kafka_topic, "Kafka does not say where it begins and ends")
        return bounds

    def _ask_kafka(self, segment: LayoutSegment, question: Callable[[float], T]) -> T:
        """Return the answer to a question with a timeout; a restarting broker is asked again.

        Raises `SegmentUnreadable`, after `KAFKA_SECONDS` at the latest.
        """
        end = time.monotonic() + KAFKA_SECONDS
        while True:
            left = end - time.monotonic()
            try:
                return question(max(left, SLICE_SECONDS))
            except KafkaException as error:
                layout = self._watch.layout
                exists = layout is not None and segment.id in layout.segments
                if error.args[0].code() not in _PASSING or left <= SLICE_SECONDS or not exists:
                    raise SegmentUnreadable(segment.kafka_topic, str(error)) from error
            time.sleep(SLICE_SECONDS)

    def _offset_at(self, segment: LayoutSegment, timestamp_ms: int) -> tuple[int, int]:
        """Return the offset of the first message at or after a time, and the end."""
        _, end = self._offset_bounds(segment)
        instant = TopicPartition(segment.kafka_topic, segment.partition, timestamp_ms)
        (first,) = self._ask_kafka(segment, lambda timeout: self._consumer.offsets_for_times([instant], timeout))
        if first.error is not None:
            raise SegmentUnreadable(segment.kafka_topic, str(first.error))
        return (first.offset if first.offset >= 0 else end), end

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("this consumer is closed: make another from its checkpoint")
