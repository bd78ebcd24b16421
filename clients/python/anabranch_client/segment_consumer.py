"""Base of the consumers that own segments as members of their consumer groups."""

import atexit
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from anabranch_client.errors import AssignmentLost, ClientClosed, SegmentUnreadable
from anabranch_client.received import ReceivedMessage
from anabranch_client.segment_reader import SegmentReader

CLOSE_SECONDS = 10.0
"""Time allowed for the last commits and the goodbye."""

Reader = TypeVar("Reader", bound=SegmentReader)
Consumer = TypeVar("Consumer", bound="SegmentConsumer[Any]")


class SegmentConsumer(ABC, Generic[Reader]):
    """Consumer with one reader per segment; `close` it, or use it as a context manager."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: dict[str, Reader] = {}
        """By name; those that wait for longest come first."""
        self._ending: list[Reader] = []
        """Readers that have been told to leave."""
        self._is_paused = self._is_closed = False

    @abstractmethod
    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[ReceivedMessage]:
        """Return up to `num_messages` as soon as there are some, or none after `timeout` seconds.

        Raises `AnabranchError` when the consumer cannot go on.
        """

    def poll(self, timeout: float = -1) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds; below 0 it waits for ever."""
        messages = self.consume(1, timeout)
        return messages[0] if messages else None

    def commit(self, timeout: float = -1) -> bool:
        """Wait until the acknowledged positions are stored in Kafka; return False if that takes longer.

        Raises `AssignmentLost` if some never will be, because their segments were lost before.
        """
        with self._changed:
            readers = [*self._readers.values(), *self._ending]
            for reader in readers:
                reader.hurry()
            stored = self._changed.wait_for(
                lambda: not any(reader.is_owner and reader.has_uncommitted for reader in readers),
                None if timeout < 0 else timeout,
            )
            lost = [reader for reader in readers if reader.unstored]
            for reader in lost:
                reader.unstored = False
        if lost:
            raise AssignmentLost([reader.segment.segment_id for reader in lost])
        return stored

    def pause(self) -> None:
        """Deliver nothing until `resume`; the segments stay assigned."""
        with self._changed:
            self._is_paused = True

    def resume(self) -> None:
        """Deliver again."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def assignment(self) -> list[int]:
        """Return the ids of the segments that this consumer owns at Kafka now."""
        with self._changed:
            return sorted(reader.segment.segment_id for reader in self._readers.values() if reader.is_owner)

    def close(self) -> None:
        """Store what was acknowledged and leave all segments. Idempotent."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            atexit.unregister(self.close)
            readers = [*self._readers.values(), *self._ending]
            for reader in readers:
                reader.release()
            self._changed.notify_all()
        end = time.monotonic() + CLOSE_SECONDS
        for reader in readers:
            reader.join(max(end - time.monotonic(), 0))
        self._end_session()

    def __enter__(self: Consumer) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _end_session(self) -> None:
        """Say goodbye to the controller."""

    def _check_open(self) -> None:
        """Raise the fault of a reader, or `ClientClosed`."""
        for reader in self._readers.values():
            if reader.error is not None:
                raise SegmentUnreadable(reader.segment.kafka_topic, str(reader.error))
        if self._is_closed:
            raise ClientClosed("this consumer is closed; make another")

    def _begin(self, reader: Reader) -> Reader:
        if not self._readers:
            # The interpreter ends threads wherever they are, in librdkafka too, before all acknowledgements are stored.
            atexit.register(self.close)
        self._readers[reader.segment.name] = reader
        reader.start()
        return reader

    def _end(self, reader: Reader, within_seconds: float = 0) -> None:
        """Let a reader commit and leave."""
        del self._readers[reader.segment.name]
        self._ending = [ending for ending in self._ending if not ending.has_ended or ending.unstored]
        self._ending.append(reader)
        reader.release(within_seconds)
