"""The driver's tick writer: a tick for every topic at each boundary, and one for a topic whose cooldown ends sooner.

Stage: beside the query, in the driver (PIP-483 "Evaluation triggers"; design "Facts that shape the job"). Ticks are
messages in `control-events`, so that they are on record and a replay has them. Missed ticks are not repeated: the
next one evaluates everything.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time

from confluent_kafka import KafkaException, Producer

from schemas.kafka import CONTROL_EVENTS
from schemas.kafka_connection import KafkaConnection
from schemas.messages import VERSION, TickEvent, key_of

log = logging.getLogger(__name__)


class TickWriter(threading.Thread):
    """Writes ticks until it is stopped."""

    def __init__(self, kafka: KafkaConnection, tick_seconds: float) -> None:
        super().__init__(name="ticks", daemon=True)
        self._producer = Producer(kafka.librdkafka({
            "enable.idempotence": True, "linger.ms": 0, "log_level": 3,
            "message.timeout.ms": int(max(tick_seconds, 5) * 1000),
        }))  # fmt: skip
        self._tick_ms = int(tick_seconds * 1000)
        self._asked: list[tuple[int, str]] = []
        self._known: set[tuple[int, str]] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self.last_tick_at: int | None = None
        """The newest boundary for which a tick was written, milliseconds."""

    def ask(self, topic: str, at: int) -> None:
        """Asks for an evaluation of one topic at `at`, milliseconds; asking again for the same is harmless."""
        with self._changed:
            if (at, topic) not in self._known:
                self._known.add((at, topic))
                heapq.heappush(self._asked, (at, topic))
                self._changed.notify()

    def stop(self) -> None:
        """Ends the thread, if there is one; ticks that were asked for are forgotten: the next regular one does."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self.ident is not None:
            self.join(timeout=5)

    def run(self) -> None:
        """The thread's body."""
        boundary = self._boundary_after(_now())
        while True:
            with self._changed:
                wake_at = min(boundary, self._asked[0][0]) if self._asked else boundary
                self._changed.wait_for(
                    lambda at=wake_at: self._stopped or (self._asked and self._asked[0][0] < at),
                    timeout=max(0, wake_at - _now()) / 1000,
                )
                if self._stopped:
                    return
                due = self._take_due(_now())
            for at, topic in due:
                self._write(TickEvent(v=VERSION, type="tick", topic=topic, at=at))
            if _now() >= boundary:
                self._write(TickEvent(v=VERSION, type="tick", at=boundary))
                self.last_tick_at = boundary
                boundary = self._boundary_after(_now())
            self._producer.poll(0)

    def _take_due(self, now: int) -> list[tuple[int, str]]:
        due = []
        while self._asked and self._asked[0][0] <= now:
            due.append(heapq.heappop(self._asked))
        self._known.difference_update(due)
        return due

    def _write(self, tick: TickEvent) -> None:
        try:
            self._producer.produce(
                CONTROL_EVENTS.name, tick.to_json().encode(), key_of(tick).encode(), on_delivery=_delivered
            )
            self._producer.poll(0)
        except (BufferError, KafkaException) as error:
            log.warning("a tick was not written: %s; the next one evaluates everything", error)

    def _boundary_after(self, now: int) -> int:
        return (now // self._tick_ms + 1) * self._tick_ms


def _delivered(error: object, _message: object) -> None:
    if error is not None:
        log.warning("a tick did not reach Kafka: %s; the next one evaluates everything", error)


def _now() -> int:
    return time.time_ns() // 1_000_000
