"""The driver's tick writer: regular ticks for every topic, and single ticks for topics due earlier.

Stage: beside the query, in the driver (PIP-483 "Evaluation triggers"; design "Facts that shape the job"). Ticks are
messages in `control-events`, so they are recorded and replayed. Missed ticks are not repeated: the next one
evaluates everything. Boundaries follow the wall clock, waits the monotonic one: however the wall clock is set, a
tick comes within one interval.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

from confluent_kafka import KafkaException

from runtime.messaging.producer import LastingProducer
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import VERSION, TickEvent, key_of
from schemas.kafka.topics import CONTROL_EVENTS

log = logging.getLogger(__name__)

_SERVE_SECONDS = 1.0
"""Interval for polling Kafka about a tick in delivery."""
Clock = Callable[[], int]
"""Function that returns milliseconds."""


def wall_ms() -> int:
    """Return milliseconds since 1970; the clock may be set at any time."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Return milliseconds of a monotonic clock."""
    return time.monotonic_ns() // 1_000_000


@dataclass
class Cadence:
    """Schedule of the ticks for every topic."""

    tick_ms: int
    wall: Clock = wall_ms
    steady: Clock = steady_ms

    def __post_init__(self) -> None:
        self._plan(self.wall())

    @property
    def due(self) -> int:
        """Time of the next tick, by the steady clock."""
        return self._due

    def take(self) -> int | None:
        """Return the boundary, by the wall clock, whose tick is due now; None if none is."""
        if self.steady() < self._due:
            return None
        now, boundary = self.wall(), self._boundary
        if abs(now - boundary) > self.tick_ms // 2:
            # The clock was set.
            boundary = now - now % self.tick_ms
        self._plan(max(now, boundary))
        return boundary

    def _plan(self, after: int) -> None:
        self._boundary = (after // self.tick_ms + 1) * self.tick_ms
        self._due = self.steady() + self._boundary - self.wall()


class TickWriter(threading.Thread):
    """Thread that writes ticks until it is stopped."""

    def __init__(self, kafka: KafkaConnection, tick_seconds: float, wall: Clock = wall_ms) -> None:
        super().__init__(name="ticks", daemon=True)
        self._configuration = kafka.librdkafka(
            {
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 3,
                "message.timeout.ms": int(max(tick_seconds, 5) * 1000),
            }
        )
        self._tick_ms, self._wall = int(tick_seconds * 1000), wall
        self._asked: list[tuple[int, int, str]] = []
        """Due time by the steady clock, instant by the wall clock, and topic of each requested tick."""
        self._known: set[tuple[int, str]] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self._waits = False
        """True while a tick is being delivered to Kafka."""

    @cached_property
    def _producer(self) -> LastingProducer:
        """Producer created with the first tick, so that a job that refuses to start never contacts Kafka."""
        return LastingProducer(self._configuration)

    def ask(self, topic: str, due_at: int) -> None:
        """Request an evaluation of one topic at `due_at`, milliseconds; repeated requests are harmless."""
        with self._changed:
            if (due_at, topic) not in self._known:
                self._known.add((due_at, topic))
                heapq.heappush(self._asked, (steady_ms() + due_at - self._wall(), due_at, topic))
                self._changed.notify()

    def stop(self) -> None:
        """End the thread, if started, and drop requested ticks: the next regular one covers them."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self.ident is not None:
            self.join(timeout=5)

    def run(self) -> None:
        """Run the thread."""
        cadence = Cadence(self._tick_ms, self._wall)
        while True:
            with self._changed:
                wake_at = min(cadence.due, self._asked[0][0]) if self._asked else cadence.due
                self._changed.wait_for(
                    partial(self._is_woken, wake_at),
                    timeout=min(max(0, wake_at - steady_ms()) / 1000, _SERVE_SECONDS if self._waits else inf),
                )
                if self._stopped:
                    return
                due = self._take_due()
            for due_at, topic in due:
                self._write(TickEvent(v=VERSION, type="tick", topic=topic, at=due_at))
            if (boundary := cadence.take()) is not None:
                self._write(TickEvent(v=VERSION, type="tick", at=boundary))
            self._serve()

    def _is_woken(self, before: int) -> bool:
        return self._stopped or (bool(self._asked) and self._asked[0][0] < before)

    def _serve(self) -> None:
        try:
            self._producer.poll()
        except KafkaException as error:
            log.warning("Kafka's producer failed: %s; the next tick tries again", error)
        self._waits = self._producer.waits

    def _take_due(self) -> list[tuple[int, str]]:
        due, now = [], steady_ms()
        while self._asked and self._asked[0][0] <= now:
            due.append(heapq.heappop(self._asked)[1:])
        self._known.difference_update(due)
        return due

    def _write(self, tick: TickEvent) -> None:
        try:
            self._producer.produce(CONTROL_EVENTS.name, tick.to_json().encode(), key_of(tick).encode(), _log_delivery)
        except (BufferError, KafkaException) as error:
            log.warning("a tick was not written: %s; the next one evaluates everything", error)


def _log_delivery(error: object, _message: object) -> None:
    if error is not None:
        log.warning("a tick did not reach Kafka: %s; the next one evaluates everything", error)
