"""Known brokers of a cluster, with call budgets and health; and the one to ask about a topic.

Stage: under `collector`; makes no calls. Any broker knows layouts, so a topic leaves a silent broker at once. Only its
leader is asked for registered consumers: any other broker that is asked keeps a standby controller for the topic from
then on, and one of 5.0.0-M1 that is elected after the leader's death never learns it. It would answer every split and
merge with 500 until it is restarted. See docs/pulsar.md.
"""

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
"""Delay after an unanswered call: doubled each time up to the longest, and randomized."""
LAYOUT_TURN = 4
LEADER_SECONDS = 30.0
"""Time until a topic's leader is looked up again. After a leader's death the clients elect another broker; a lookup at
the same instant could make the broker that is asked a standby."""
STUCK_PERIODS = 3
"""Periods of unchanged answers after which a broker with traffic counts as stuck: answers also count messages, so
traffic changes them even at constant rates."""


@dataclass
class FollowedBroker:
    """Broker of the cluster, and its health."""

    name: str
    """Its announced name: the reporter of its samples."""
    reader: BrokerReader
    refresh: Refresh
    budget: Budget
    consumers: Sweep
    """Topics whose consumers it is asked for."""
    layouts: Sweep
    in_flight: int = 0
    load: BrokerLoad | None = None
    """Its last answer; None: there is none, or none of late."""
    read_at: float = float("-inf")
    """Time of the request for it."""
    read_seconds: float = 0.0
    """Time that it took to answer."""
    sent_at: float = float("-inf")
    """Time when its load was last sent to Kafka."""
    trouble: str | None = None
    """Reason why its load cannot be read."""
    silent_until: float = float("-inf")
    """No calls before this time, after one without an answer."""
    failures: int = 0
    silent_since: float = float("-inf")
    """Time of the first of these failures."""
    joined_at: float = field(default_factory=time.monotonic)
    _looks: int = 0

    def failed(self, why: str, now: float, random: Random) -> None:
        """Note a call without an answer; wait longer each time before the next."""
        if not self.failures:
            self.silent_since = now
        self.failures += 1
        longest = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(self.failures - 1, 10))
        self.silent_until = now + longest * random.uniform(0.5, 1.0)
        self.trouble = why

    def answered(self) -> None:
        """Note an answered call."""
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
        """Return the time since its answer last changed."""
        return max(0.0, now - self.refresh.changed_at)

    def is_stuck(self, now: float) -> bool:
        """Return True if the broker has traffic and has stopped computing its rates."""
        return (
            self.load is not None
            and self.load.has_traffic
            and self.unchanged_seconds(now) >= STUCK_PERIODS * self.refresh.period
        )

    @property
    def is_silent(self) -> bool:
        """True if the last calls got no answer."""
        return self.failures >= 2


@dataclass
class Brokers:
    """All brokers by name, and the one to ask about each topic."""

    known: dict[str, FollowedBroker] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    """Broker that is asked for the layout of each topic."""
    consumers: dict[str, str] = field(default_factory=dict)
    """Broker that is asked for the consumers of each topic: its leader."""
    asks_stats: bool = False
    """True: leaders are asked for registered consumers."""
    leaderless: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Topics without a known leader, each with the earliest time of the next lookup."""

    def add_topic(self, topic: str, now: float = 0.0) -> None:
        """Add a new topic; it is read soon."""
        if topic not in self.layouts:
            self._give_layout(topic, (now, False))
            if self.asks_stats:
                self.leaderless[topic] = now

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic."""
        self._take_layout(topic)
        self._take_consumers(topic)
        self.leaderless.pop(topic, None)

    def next_leaderless(self, now: float) -> str | None:
        """Return the next topic whose leader to look up, and defer its next lookup."""
        topic = next((name for name, not_before in islice(self.leaderless.items(), 64) if now >= not_before), None)
        if topic is not None:
            self.leaderless[topic] = now + LEADER_SECONDS
            self.leaderless.move_to_end(topic)
        return topic

    def set_leader(self, topic: str, address: str, now: float) -> bool:
        """Assign a topic's consumers to its leader; return False if no known broker has this address."""
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
        """Look the leader up again, after its clients had time to elect one."""
        self._take_consumers(topic)
        self.leaderless[topic] = now + LEADER_SECONDS

    def sweep_of(self, topic: str) -> Sweep | None:
        """Return the sweep that checks a topic for changes.

        If consumers are asked for it is theirs, because that answer has the epoch of the layout; else that of layouts.
        """
        broker = self.known.get((self.consumers if self.asks_stats else self.layouts).get(topic, ""))
        return None if broker is None else broker.consumers if self.asks_stats else broker.layouts

    def note_layout(self, topic: str, read_at: float) -> None:
        """Record a read of a topic's layout."""
        if broker := self.known.get(self.layouts.get(topic, "")):
            broker.layouts.note_read(topic, read_at)

    def note_consumers(self, topic: str, read_at: float) -> None:
        """Record a read of a topic's consumers."""
        if broker := self.known.get(self.consumers.get(topic, "")):
            broker.consumers.note_read(topic, read_at)

    def look_at_layout(self, topic: str, not_before: float = 0.0) -> None:
        """Read a layout that seems to have changed next, but not before `not_before`."""
        if (broker := self.known.get(self.layouts.get(topic, ""))) is not None:
            broker.layouts.hurry(topic, not_before)

    def share_again(self, now: float) -> None:
        """Reassign topics after brokers came, went, fell silent or came back; others stay."""
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
        if (name := best_broker(topic, self._candidates())) is not None:
            self.layouts[topic] = name
            self.known[name].layouts.add(topic, *age)

    def _take_layout(self, topic: str) -> tuple[float, bool] | None:
        broker = self.known.get(self.layouts.pop(topic, ""))
        return None if broker is None else broker.layouts.remove(topic)

    def _take_consumers(self, topic: str) -> None:
        if (broker := self.known.get(self.consumers.pop(topic, ""))) is not None:
            broker.consumers.remove(topic)


def best_broker(topic: str, names: Iterable[str]) -> str | None:
    """Return the broker with the highest random weight; a topic keeps its broker while that is available."""
    return max(names, key=lambda name: (zlib.crc32(f"{name}|{topic}".encode()), name), default=None)
