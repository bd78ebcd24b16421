"""The brokers of a cluster as the collector knows them: the way to each, its budget, what it serves and whether it
answers; and which of them is asked about a topic.

Stage: under `collector`; makes no calls. Layouts may be asked of any broker, so a topic leaves one that is silent at
once. Consumers may not: a broker that is asked for them keeps a controller for the topic from then on, and stands by if
another one leads it. One of 5.0.0-M1 that stood by when the leader died is elected and never knows it: it answers every
split and merge with 500 until it is started again. So consumers are asked of the same broker until the cluster lists it
no more, which is when its session has ended, and with it what it led. See docs/pulsar-brokers.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from collectors.pulsar.broker_stats import BrokerLoad
from collectors.pulsar.reader import BrokerReader
from collectors.pulsar.refresh import Refresh
from collectors.pulsar.sweep import Budget, Sweep

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 15.0
"""Delay after a call that a broker has not answered; doubled each time, up to the longest, and random within that."""
LAYOUT_TURN = 4


@dataclass
class Broker:
    """One broker."""

    name: str
    """As the cluster announces it: the reporter of its samples."""
    reader: BrokerReader
    refresh: Refresh
    budget: Budget
    consumers: Sweep
    """The topics whose consumers it is asked for."""
    layouts: Sweep
    in_flight: int = 0
    load: BrokerLoad | None = None
    """Its last answer; None: none, or not lately."""
    read_at: float = float("-inf")
    """When that was asked for."""
    read_seconds: float = 0.0
    """How long it took to answer that."""
    said_at: float = float("-inf")
    """When its load was sent to Kafka last."""
    trouble: str | None = None
    """Why its load cannot be read."""
    silent_until: float = float("-inf")
    """After a call without an answer it is left alone for a while."""
    failures: int = 0
    silent_since: float = float("-inf")
    """When the first of these failed."""
    _looks: int = 0

    def failed(self, why: str, now: float, random: Random) -> None:
        """A call got no answer: the broker is left alone, longer each time."""
        if not self.failures:
            self.silent_since = now
        self.failures += 1
        longest = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(self.failures - 1, 10))
        self.silent_until = now + longest * random.uniform(0.5, 1.0)
        self.trouble = why

    def answered(self) -> None:
        """A call got its answer."""
        self.failures = 0
        self.silent_until = float("-inf")

    def next_look(self, now: float) -> tuple[Literal["layout", "stats"], str | None]:
        """What it is asked next about a topic; None: nothing now. A layout that may have changed comes first; of the
        others one for every `LAYOUT_TURN` looks at consumers, which say the epoch of the layout as well."""
        self._looks += 1
        topic = self.layouts.next_at_once(now)
        if topic is None and self._looks % LAYOUT_TURN == 0:
            topic = self.layouts.next(now)
        if topic is not None:
            return "layout", topic
        topic = self.consumers.next(now)
        return ("stats", topic) if topic is not None else ("layout", self.layouts.next(now))

    @property
    def is_silent(self) -> bool:
        """Whether its last calls got no answer."""
        return self.failures >= 2


@dataclass
class Brokers:
    """All of them, by name, and who is asked about what."""

    known: dict[str, Broker] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    """The broker that is asked for the layout of each topic."""
    consumers: dict[str, str] = field(default_factory=dict)
    """The broker that is asked for the consumers of each topic, or was by the collector before this one."""
    session_seconds: float = 0.0
    """After so long without a sign of life a broker leads nothing any more; 0: not known."""

    def add_topic(self, topic: str) -> None:
        """A topic that is new here; it is looked at soon."""
        if topic not in self.layouts:
            self._give_layout(topic)
            self._give_consumers(topic)

    def remove_topic(self, topic: str) -> None:
        """A topic that is gone."""
        self._take_layout(topic)
        self._take_consumers(topic)

    def of_consumers(self, topic: str) -> Broker | None:
        """The broker that is asked for a topic's consumers."""
        return self.known.get(self.consumers.get(topic, ""))

    def look_at_layout(self, topic: str, at: float = 0.0) -> None:
        """Something says that a layout has changed: it is looked at next, not before `at`."""
        broker = self.known.get(self.layouts.get(topic, ""))
        if broker is not None:
            broker.layouts.hurry(topic, at)

    def share_again(self, now: float) -> None:
        """Brokers have come, gone, fallen silent or come back: topics move, and only those that have to."""
        candidates = self._candidates()
        for topic, name in list(self.layouts.items()):
            if _best(topic, candidates) != name:
                self._take_layout(topic)
                self._give_layout(topic)
        gone = self.given_up(now)
        for topic in self.layouts:
            name = self.consumers.get(topic, "")
            if name in gone or name not in self.known:
                self._take_consumers(topic)
                self._give_consumers(topic)

    def given_up(self, now: float) -> set[str]:
        """Listed brokers that have been silent for longer than one that is dead is listed: there is no way to them."""
        silent = {name for name, one in self.known.items() if one.is_silent}
        patience = 2 * self.session_seconds
        return {name for name in silent if now - self.known[name].silent_since >= patience} if silent else silent

    def _candidates(self) -> list[str]:
        return [name for name, broker in self.known.items() if not broker.is_silent] or list(self.known)

    def _give_layout(self, topic: str) -> None:
        name = _best(topic, self._candidates())
        if name is not None:
            self.layouts[topic] = name
            self.known[name].layouts.add(topic)

    def _give_consumers(self, topic: str) -> None:
        before = self.consumers.get(topic, "")
        name = before if before in self.known else _best(topic, self._candidates())
        if name is not None:
            self.consumers[topic] = name
            self.known[name].consumers.add(topic)

    def _take_layout(self, topic: str) -> None:
        broker = self.known.get(self.layouts.pop(topic, ""))
        if broker is not None:
            broker.layouts.remove(topic)

    def _take_consumers(self, topic: str) -> None:
        broker = self.known.get(self.consumers.pop(topic, ""))
        if broker is not None:
            broker.consumers.remove(topic)


def _best(topic: str, names: Iterable[str]) -> str | None:
    """By highest random weight: whatever the others are, a topic stays with its broker while that is there."""
    return max(names, key=lambda name: (zlib.crc32(f"{name}|{topic}".encode()), name), default=None)
