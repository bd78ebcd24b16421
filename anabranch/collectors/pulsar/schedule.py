"""Schedule of periodic requests: lists, policies and settings, each at its time; pure.

Stage: under `collector`. Loads and topics are no part of it: `refresh` and `sweep` say when those are due.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from anabranch.collectors.pulsar.calls import Kind

_JITTER = 0.1
"""Part of a time by which it varies, so that several collectors do not fall into step."""

REQUEST_SECONDS = 5.0
"""Timeout of a call."""
MAX_ANSWER_BYTES = 256_000_000
"""Largest response of a broker; a load has 1 KB per segment and 0.5 KB for each of its consumers."""


class ReadIntervals(NamedTuple):
    """Shortest intervals between two reads, seconds; the rate of calls to a broker can make them longer."""

    brokers_s: float = 5.0
    namespaces_s: float = 30.0
    """Of namespaces and their policies."""
    topics_s: float = 2.0
    """Of a namespace; large namespaces and those among many are read less often."""
    consumers_s: float = 1.0
    """Of a topic."""
    layouts_s: float = 30.0
    """Of a topic's layout and policy without signs of a change."""


INTERVALS = ReadIntervals()


class Agenda:
    """One call of a kind and key at a time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due: list[tuple[float, int, Kind, str]] = []
        self._planned: set[tuple[Kind, str]] = set()
        self._number = 0

    def plan(self, kind: Kind, key: str, instant: float, seconds: float) -> None:
        """A call that is due so many seconds after `instant`, more or less, unless it is planned already."""
        if (kind, key) not in self._planned:
            self._planned.add((kind, key))
            self._number += 1
            due = instant + seconds * self._random.uniform(1 - _JITTER, 1 + _JITTER)
            heapq.heappush(self._due, (due, self._number, kind, key))

    def due(self, now: float) -> Iterator[tuple[Kind, str]]:
        """Yield what is due, as long as the caller goes on; the caller plans each item anew."""
        while self._due and self._due[0][0] <= now:
            _, _, kind, key = heapq.heappop(self._due)
            self._planned.discard((kind, key))
            yield kind, key
