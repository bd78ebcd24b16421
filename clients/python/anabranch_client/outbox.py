"""Small messages that follow each other quickly, given to librdkafka together: that costs much less for each.

Stage: between `Producer.produce` and `lanes`. `produce` fills outboxes without the producer's lock. `send` empties
them: `produce` calls it when one is full, `poll` and `flush` do, and a thread when the linger time is over.

Theory. `produce` appends a message to its lane's outbox, then adds the lane to `touched`, then looks at `is_armed`;
`send` clears `is_armed`, then `touched`, then empties the outboxes. So one of them sees each message: `produce` sends
what it finds disarmed. If a lane is not open any more, all messages are sent one by one, those of ancestors first: a
key may have some in the outboxes of a segment and of its child.

As in `lanes`, what a signal must not separate stands in lines without calls; what an interrupt leaves goes first.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from confluent_kafka import KafkaException

from anabranch_client.config import ProducerSettings
from anabranch_client.lanes import Lane, Lanes, LaneState
from anabranch_client.layout import MAX_CACHED_KEY_BYTES
from anabranch_client.messages import PendingMessage
from anabranch_client.names import PARTITION
from anabranch_client.reports import Reports
from anabranch_client.sent_batch import OVERHEAD_BYTES, SentBatch

MAX_BATCH = 200
"""Most messages that are given to librdkafka together."""
FORGOTTEN_SECONDS = 60.0
"""Time after which the thread of a producer that nobody has closed ends."""
_age = attrgetter("age")


class Outboxes:
    """Outboxes of all lanes; all but what `produce` uses needs the producer's lock."""

    def __init__(
        self, settings: ProducerSettings, lanes: Lanes, reports: Reports, outcomes: list[Any], produce_batch: Any
    ) -> None:
        """`produce_batch`: that of `confluent_kafka.Producer`; what ends comes into `outcomes`."""
        self._settings, self._lanes, self._reports, self._outcomes = settings, lanes, reports, outcomes
        self._produce_batch = produce_batch
        self._batches: list[SentBatch] = []
        self._singles: deque[PendingMessage] = deque()
        """Messages out of their outboxes: together, and those to be sent one by one."""
        self._wake: threading.Event | None = None
        self.touched: set[Lane] = set()
        """Lanes with messages in their outboxes."""
        self.is_armed = False
        """True while someone is to send what is in the outboxes."""
        self.batch = 0
        """Most messages in an outbox, so that no bound of the producer is exceeded; 0: none may come."""
        self.number = 0
        """Number of the next message, in the order of acceptance."""
        self._sent_at = self._armed_at = 0.0
        self._linger_seconds = settings.own_linger_ms / 1000

    def __len__(self) -> int:
        return sum(len(lane.outbox) for lane in tuple(self.touched))

    @property
    def is_due(self) -> bool:
        """Return whether there is something to send."""
        return bool(self.touched or self._batches or self._singles)

    @property
    def is_overdue(self) -> bool:
        """Return whether the linger time is over, or an interrupt has left something."""
        return time.monotonic() - self._armed_at >= self._linger_seconds if self.is_armed else self.is_due

    def arm(self, send: Callable[[], None]) -> bool:
        """Return whether messages follow each other quickly; if so, `send` will be called within the linger time."""
        now = time.monotonic()
        if now - self._sent_at > self._linger_seconds:
            return False
        if self._wake is None:
            wake = threading.Event()
            work = weakref.WeakMethod(send), wake, self._linger_seconds
            threading.Thread(target=_send_in_time, args=work, name="anabranch linger", daemon=True).start()
            self._wake = wake
        self._armed_at = now
        try:
            self.is_armed = True
            self._wake.set()
        except BaseException:
            # A signal: nobody may have been told.
            self.is_armed = False
            raise
        return True

    def send(self) -> None:
        """Give all messages to librdkafka, or to `lanes`."""
        self.is_armed = False
        is_interrupted = bool(self._batches or self._singles)
        self._empty()
        if is_interrupted or any(batch.lane.state is not LaneState.OPEN for batch in self._batches):
            singles = [record for batch in self._batches for record in batch.singles()]
            # No call in these lines.
            self._singles += singles
            self._batches = []
        while self._batches:
            self._send_batch(self._batches[0])
        while self._singles:
            if not self._singles[0].is_accepted:
                self._lanes.resubmit(self._singles[0])
            self._singles.popleft()

    def admit(self, is_open: bool) -> None:
        """Say how many messages may come before somebody looks at the bounds again."""
        settings, reports = self._settings, self._reports
        largest = OVERHEAD_BYTES + settings.small_bytes + MAX_CACHED_KEY_BYTES
        room = min(settings.max_messages - reports.count, (settings.max_bytes - reports.bytes) // largest)
        self._sent_at = time.monotonic()
        self.batch = max(min(MAX_BATCH, room // len(self._lanes.layout.active)), 0) if is_open else 0

    def _empty(self) -> None:
        """Move all messages from the outboxes to `_batches`, those of ancestors first."""
        lanes, reports = sorted(self.touched, key=_age), self._reports
        deadline = time.monotonic() + self._settings.timeout_seconds
        try:
            self.touched.difference_update(lanes)
            for lane in lanes:
                if not lane.outbox:
                    continue
                batch = SentBatch(lane, lane.outbox[:], self.number, deadline, self._outcomes)
                number, size = len(batch), batch.size
                # No call in these lines.
                del lane.outbox[:number]
                self.number += number
                reports.count += number
                reports.bytes += size
                self._batches += (batch,)
        except BaseException:
            self.touched.update(lanes)
            raise

    def _send_batch(self, batch: SentBatch) -> None:
        """Send the first of `_batches`; what librdkafka refuses is sent again, one by one."""
        send, lane, messages, number = self._produce_batch, batch.lane, batch.messages(), len(batch)
        refused: list[int] | None = None
        try:
            # A signal raises when `send` has returned, and nowhere else in these lines.
            lane.in_flight += number
            del self._batches[0]
            if send(lane.segment.kafka_topic, messages, PARTITION, batch.end) == number:
                refused = []
        except (KafkaException, BufferError, TypeError, ValueError):
            refused = list(range(number))
        finally:
            if refused is None:
                refused = [index for index, message in enumerate(messages) if "_error" in message]
            if refused:
                singles, count = batch.singles(refused), len(refused)
                self._singles += singles
                lane.in_flight -= count


def _send_in_time(send: weakref.WeakMethod[Callable[[], None]], wake: threading.Event, seconds: float) -> None:
    """Call `send` some time after each `wake`, until its producer is gone."""
    while True:
        wake.wait(FORGOTTEN_SECONDS)
        if wake.is_set():
            wake.clear()
            time.sleep(seconds)
        if (call := send()) is None:
            return
        call()
        del call
