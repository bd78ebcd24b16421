"""Known brokers of a cluster: connection, call budget, segments, health; and which one to ask.

Stage: under `collector`; makes no calls. Layouts may be asked of any broker, so a topic leaves one that is silent at
once. Registered consumers may not: a broker that is asked for them keeps a controller for the topic from then on, and
stands by if another one leads it. One of 5.0.0-M1 that stood by when the leader died is elected and never knows it: it
answers every split and merge with 500 until it is started again. So only the leader is asked. See docs/pulsar.md.
"""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Literal

from anabranch.collectors.pulsar.broker_stats import BrokerLoad
from anabranch.collectors.pulsar.reader import BrokerReader
from anabranch.collectors.pulsar.refresh import Refresh
from anabranch.collectors.pulsar.sweep import Budget, Sweep

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 15.0
"""Delay after a call that a broker has not answered; doubled each time, up to the longest, and random within that."""
LAYOUT_TURN = 4
LEADER_SECONDS = 30.0
"""Until a topic's leader is asked for again. After a leader's death its clients make another broker the leader; if the
collector asked at the same instant, the broker that it asks might become one that stands by."""
STUCK_PERIODS = 3
"""A broker that answers the same bytes for so many periods, with traffic in them, computes no rates any more: as its
answer counts messages too, traffic changes it even at constant rates."""


@dataclass
class FollowedBroker:
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
    joined_at: float = field(default_factory=time.monotonic)
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
        """Return the next request about a topic; its topic is None when there is nothing to ask now.

        A layout that may have changed comes first; otherwise one layout for every `LAYOUT_TURN` requests for
        consumers, which include the epoch of the layout.
        """
        self._looks += 1
        topic = self.layouts.next_at_once(now)
        if topic is None and self._looks % LAYOUT_TURN == 0:
            topic = self.layouts.next(now)
        if topic is not None:
            return "layout", topic
        topic = self.consumers.next(now)
        return ("stats", topic) if topic is not None else ("layout", self.layouts.next(now))

    def unchanged_seconds(self, now: float) -> float:
        """Time since its rates were other ones."""
        return max(0.0, now - self.refresh.changed_at)

    def is_stuck(self, now: float) -> bool:
        """Return whether the broker has stopped computing its rates, by its answers, and is not idle."""
        return (
            self.load is not None
            and self.load.has_traffic
            and self.unchanged_seconds(now) >= STUCK_PERIODS * self.refresh.period
        )

    @property
    def is_silent(self) -> bool:
        """Return whether the last calls got no answer."""
        return self.failures >= 2


@dataclass
class Brokers:
    """All of them, by name, and who is asked about what."""

    known: dict[str, FollowedBroker] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    """The broker that is asked for the layout of each topic."""
    consumers: dict[str, str] = field(default_factory=dict)
    """The broker that is asked for the consumers of each topic: the one that leads it."""
    asks_stats: bool = False
    """Whether topics are asked for their registered consumers."""
    leaderless: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Topics whose leader is not known, each with the instant before which it is not asked for."""

    def add_topic(self, topic: str, now: float = 0.0) -> None:
        """A topic that is new here; it is looked at soon."""
        if topic not in self.layouts:
            self._give_layout(topic, (now, False))
            if self.asks_stats:
                self.leaderless[topic] = now

    def remove_topic(self, topic: str) -> None:
        """A topic that is gone."""
        self._take_layout(topic)
        self._take_consumers(topic)
        self.leaderless.pop(topic, None)

    def next_leaderless(self, now: float) -> str | None:
        """Take the next topic whose leader is to be asked for."""
        topic = next((name for name, not_before in islice(self.leaderless.items(), 64) if now >= not_before), None)
        if topic is not None:
            self.leaderless[topic] = now + LEADER_SECONDS
            self.leaderless.move_to_end(topic)
        return topic

    def set_leader(self, topic: str, address: str, now: float) -> bool:
        """Assign a topic's consumers to its leader; return False if its address is of no known broker."""
        host = address.rpartition(":")[0]
        names = [name for name in self.known if name == address] or [
            name for name in self.known if name.rpartition(":")[0] == host
        ]
        if len(names) != 1 or topic not in self.layouts:
            return False
        self.leaderless.pop(topic, None)
        self._take_consumers(topic)
        self.consumers[topic] = names[0]
        self.known[names[0]].consumers.add(topic, now)
        return True

    def lose_leader(self, topic: str, now: float) -> None:
        """Ask for the leader again, after its clients had time to choose one."""
        self._take_consumers(topic)
        self.leaderless[topic] = now + LEADER_SECONDS

    def sweep_of(self, topic: str) -> Sweep | None:
        """Return the sweep that checks a topic for changes.

        It is that of the topic's consumers if they are asked for, since these include the epoch of the layout; else
        that of its layout.
        """
        broker = self.known.get((self.consumers if self.asks_stats else self.layouts).get(topic, ""))
        return None if broker is None else broker.consumers if self.asks_stats else broker.layouts

    def note_layout(self, topic: str, read_at: float) -> None:
        """Note that a layout was read that was asked for at an instant."""
        if broker := self.known.get(self.layouts.get(topic, "")):
            broker.layouts.note_read(topic, read_at)

    def note_consumers(self, topic: str, read_at: float) -> None:
        """Record a read of a topic's consumers."""
        if broker := self.known.get(self.consumers.get(topic, "")):
            broker.consumers.note_read(topic, read_at)

    def look_at_layout(self, topic: str, not_before: float = 0.0) -> None:
        """Something says that a layout has changed: it is looked at next, not before `not_before`."""
        broker = self.known.get(self.layouts.get(topic, ""))
        if broker is not None:
            broker.layouts.hurry(topic, not_before)

    def share_again(self, now: float) -> None:
        """Brokers have come, gone, fallen silent or come back: topics move, and only those that have to."""
        candidates = self._candidates()
        for topic, name in list(self.layouts.items()):
            if best_broker(topic, candidates) != name:
                self._give_layout(topic, self._take_layout(topic) or (now, False))
        for topic, name in list(self.consumers.items()):
            if name not in self.known:
                self.lose_leader(topic, now)

    def _candidates(self) -> list[str]:
        return [name for name, broker in self.known.items() if not broker.is_silent] or list(self.known)

    def _give_layout(self, topic: str, age: tuple[float, bool]) -> None:
        name = best_broker(topic, self._candidates())
        if name is not None:
            self.layouts[topic] = name
            self.known[name].layouts.add(topic, *age)

    def _take_layout(self, topic: str) -> tuple[float, bool] | None:
        broker = self.known.get(self.layouts.pop(topic, ""))
        return None if broker is None else broker.layouts.remove(topic)

    def _take_consumers(self, topic: str) -> None:
        broker = self.known.get(self.consumers.pop(topic, ""))
        if broker is not None:
            broker.consumers.remove(topic)


def best_broker(topic: str, names: Iterable[str]) -> str | None:
    """Return the broker with the highest random weight; a topic keeps its broker while that is available."""
    return max(names, key=lambda name: (zlib.crc32(f"{name}|{topic}".encode()), name), default=None)
