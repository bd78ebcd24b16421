"""Calls to brokers, scheduled and in flight, made by threads and answered to one owner.

Stage: under `collector`. No call is in flight twice, and none raises.
"""

import heapq
import logging
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NamedTuple

from anabranch.admin.answers import Lost, Reply

log = logging.getLogger(__name__)

Kind = Literal[
    "brokers", "settings", "tenants", "namespaces", "topics", "policy", "load", "layout", "leader", "stats", "segment"
]


class Call(NamedTuple):
    """One call: its kind, its subject, and the broker (empty: the configured address)."""

    kind: Kind
    key: str
    broker: str


@dataclass
class CallAnswer:
    """Answer of a call."""

    call: Call
    reply: Reply[Any]
    asked_at: float
    """Time of the call on the clock `time.monotonic`, as `answered_at`."""
    answered_at: float
    asked_ms: int
    """Time of the call, ms since 1970."""


_JITTER = 0.1
"""Random fraction of an interval, so that several collectors do not synchronize."""
REQUEST_SECONDS = 5.0
"""Timeout of a call."""
MAX_ANSWER_BYTES = 256_000_000
"""Largest response of a broker; a load has 1 KB per segment and 0.5 KB for each of its consumers."""
MAX_LOADS = 8
"""Largest number of loads read at the same time."""


class Calls:
    """Pool of at most `most` calls, and a separate one for loads. For one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="call")
        self._load_pool = ThreadPoolExecutor(MAX_LOADS, thread_name_prefix="load")
        self._answers: queue.SimpleQueue[CallAnswer] = queue.SimpleQueue()
        self._in_flight: set[Call] = set()
        self._others = 0
        """Number of calls in flight that read no load."""
        self.made = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    def __contains__(self, call: Call) -> bool:
        return call in self._in_flight

    @property
    def has_room(self) -> bool:
        """True if another call may be made; a load always may."""
        return self._others < self._most

    def make(self, call: Call, function: Callable[[], Reply[Any]]) -> bool:
        """Start a call with `function`; return False if the same call is in flight."""
        if call in self._in_flight:
            return False
        self._in_flight.add(call)
        self.made += 1
        if call.kind == "load":
            self._load_pool.submit(self._work, call, function)
        else:
            self._others += 1
            self._pool.submit(self._work, call, function)
        return True

    def answers(self, seconds: float) -> Iterator[CallAnswer]:
        """Yield the answers received so far; wait up to `seconds` for the first."""
        try:
            answer = self._answers.get(timeout=seconds)
            while True:
                self._in_flight.discard(answer.call)
                self._others -= answer.call.kind != "load"
                yield answer
                answer = self._answers.get_nowait()
        except queue.Empty:
            return

    def close(self) -> None:
        """Drop queued calls and return at once; those in flight end when their connections are closed."""
        for pool in (self._pool, self._load_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, call: Call, function: Callable[[], Reply[Any]]) -> None:
        asked_at, asked_ms = time.monotonic(), time.time_ns() // 1_000_000
        try:
            reply = function()
        except Exception as error:  # a bug must not end the loop
            log.exception("asking for %s %s", call.kind, call.key)
            reply = Lost(f"{call.kind} {call.key}", f"{type(error).__name__}: {error}", False)
        self._answers.put(CallAnswer(call, reply, asked_at, time.monotonic(), asked_ms))


class ReadIntervals(NamedTuple):
    """Shortest intervals between two reads, seconds; the rate of calls to a broker can make them longer."""

    brokers_s: float = 5.0
    namespaces_s: float = 30.0
    """The list of namespaces, and their policies."""
    topics_s: float = 2.0
    """The topics of a namespace; read less often if there are many of either."""
    consumers_s: float = 1.0
    """The consumers of a topic."""
    layouts_s: float = 30.0
    """The layout and policy of a topic without signs of a change."""


INTERVALS = ReadIntervals()


class Schedule:
    """Schedule of periodic requests for lists, policies and settings, one per kind and key; pure.

    `refresh` and `sweep` schedule those for loads and topics.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due: list[tuple[float, int, Kind, str]] = []
        self._planned: set[tuple[Kind, str]] = set()
        self._number = 0

    def plan(self, kind: Kind, key: str, instant: float, seconds: float) -> None:
        """Schedule a call about `seconds` after `instant`, unless it is scheduled already."""
        if (kind, key) not in self._planned:
            self._planned.add((kind, key))
            self._number += 1
            due = instant + seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER)
            heapq.heappush(self._due, (due, self._number, kind, key))

    def due(self, now: float) -> Iterator[tuple[Kind, str]]:
        """Yield the calls that are due; the caller schedules each of them again."""
        while self._due and self._due[0][0] <= now:
            _, _, kind, key = heapq.heappop(self._due)
            self._planned.discard((kind, key))
            yield kind, key
