"""Delivery reports of a producer, called outside of librdkafka and of the producer's lock.

So `on_delivery` may raise, and may call every method of the producer. In a callback of confluent-kafka a call of `poll`
would end the process.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from anabranch_client.errors import AnabranchError
from anabranch_client.messages import DeliveryReport, DueReport, PendingMessage
from anabranch_client.sent_batch import SentBatch

CHUNK = 100
"""Most reports that are called before other threads see that they were: a lock for each would cost more than it."""
_TAKING = {PendingMessage.__call__.__code__, SentBatch.end.__code__}
CHUNK_BYTES = 1_048_576
"""Their size, in which others may be produced meanwhile; larger ones are called one by one."""


class Reports:
    """Accepted messages until their reports are called; all but `call_due` needs the producer's lock."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.ended: list[DueReport] = []
        """Reports that have not been called; that of a stored message is appended when it ends."""
        self._callers: set[int] = set()
        """Threads that are calling reports."""
        self._calling = 0
        """Number of messages whose reports are being called."""
        self.count = self.bytes = 0
        """Accepted messages before their reports, and their size."""

    @property
    def is_calling(self) -> bool:
        """Return whether this thread is inside of a report."""
        return threading.get_ident() in self._callers

    @property
    def unfinished(self) -> int:
        """Number of messages that have not ended."""
        return self.count - len(self.ended)

    @property
    def unreported(self) -> int:
        """Number of messages whose reports have not been called to the end."""
        with self._lock:
            return self.count + self._calling

    @property
    def awaited(self) -> int:
        """Number of messages that a flush waits for: inside of a report, others cannot be reported."""
        with self._lock:
            return self.unfinished if self.is_calling else self.unreported

    def fail_message(self, record: PendingMessage, error: AnabranchError) -> None:
        """End a message that was not stored; its report follows."""
        self.ended.append(record.due(error))

    def call_due(self) -> int:
        """Call the reports that are due, unless this thread is inside of one; return their number."""
        thread, called = threading.get_ident(), 0
        if not self.ended or thread in self._callers:
            return 0
        try:
            self._callers.add(thread)
            while self.ended:
                called += self._call_chunk()
        finally:
            self._callers.discard(thread)
        return called

    def _call_chunk(self) -> int:
        """Call some reports; those behind one that raises are due again."""
        reports: list[DueReport] = []
        count = called = 0
        try:
            with self._lock:
                due = self.ended[:CHUNK]
                size = sum([report[-1] for report in due])
                if size > CHUNK_BYTES:
                    due, size = due[:1], due[0][-1]
                number = len(due)
                # No call in these lines: a signal could raise after it.
                del self.ended[:number]
                self.count -= number
                self.bytes -= size
                self._calling += number
                reports, count = due, number
            for on_delivery, error, key, value, offset, lane, _ in reports:
                if on_delivery is None:
                    called += 1
                    continue
                report = DeliveryReport()
                report.key, report.value, report.offset, report.lane = key, value, offset, lane
                # No call in between: a signal could raise after it, and the report would count as called.
                called += 1
                on_delivery(error, report)
        finally:
            with self._lock:
                self._calling -= count
                left = reports[called:]
                self.ended[:0] = left
                self.count += len(left)
                self.bytes += sum([report[-1] for report in left])
        return called


def wait_for_reports(wait: Callable[[float], object], seconds: float) -> None:
    """Wait in librdkafka. Ctrl-C raises, but not inside of a report, which librdkafka would not repeat.

    Handlers of the application are left alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or (handler := signal.getsignal(signal.SIGINT)) is not signal.default_int_handler:
        wait(seconds)
        return
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        while frame is not None and frame.f_code not in _TAKING:
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt
        interrupted = True

    try:
        signal.signal(signal.SIGINT, interrupt)
        wait(seconds)
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupted:
        raise KeyboardInterrupt
