"""Order in which topics are checked, and budgets of calls per broker; pure: the clock is an argument.

Stage: under `collector`. A call for each topic every second or two is too much for a cluster of ten thousand. So the
calls that brokers may get are dealt out: half of them to topics of which something says that they change (they have
changed lately, or a broker's load shows other consumers); of the other half most to topics that are used, in turn, and
the rest to those that are not.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

HOT_SECONDS = 30.0
"""A topic that has changed is looked at often for so long: consumers come and go together."""
USED_SECONDS = 600.0
"""A topic counts as used for so long after something has shown that it is."""
UNUSED_TURN = 4
"""One in so many turns is of the topics that are not used, if there are any others."""


@dataclass
class Budget:
    """The calls that one broker may get: so many per second, and what was left over of one second."""

    per_second: float
    left: float = 1.0
    filled_at: float = 0.0

    def take(self, now: float) -> bool:
        """Take a call from the budget; return whether one was left."""
        if not self.has_room(now):
            return False
        self.left -= 1
        return True

    def has_room(self, now: float) -> bool:
        """Return whether the budget has a call left."""
        self.left = min(max(self.per_second, 1.0), self.left + max(0.0, now - self.filled_at) * self.per_second)
        self.filled_at = now
        return self.left >= 1

    def spend(self, now: float) -> None:
        """A call that is made in any case, now; others wait for it."""
        self.has_room(now)
        self.left -= 1


@dataclass
class Sweep:
    """The order in which topics are looked at; each at most once in `pause` seconds."""

    pause: float
    _used: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Topics that are used, the one looked at longest ago first."""
    _unused: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """The others; a topic that is used no more is moved here when its turn comes."""
    _used_until: dict[str, float] = field(default_factory=dict)
    _turns: int = 0
    _asked_at: dict[str, float] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)
    """When each topic was read; of one that never was, since when it is known."""
    _unread: set[str] = field(default_factory=set)
    # Ordered dicts: a plain one is walked from its first free slot, so taking its first entries is quadratic.
    _hot_until: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _at_once: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _hot_next: bool = True

    def __len__(self) -> int:
        return len(self._asked_at)

    def add(self, topic: str, since: float = 0.0, is_read: bool = False) -> None:
        """Add a topic that is known, or was read, since then; it is looked at soon."""
        if topic not in self._asked_at:
            self._asked_at[topic] = float("-inf")
            self._read_at[topic] = since
            if not is_read:
                self._unread.add(topic)
            self._unused[topic] = None
            self._at_once[topic] = 0.0

    def remove(self, topic: str) -> tuple[float, bool] | None:
        """Remove a topic; answers what `add` takes to go on elsewhere."""
        since, is_read = self._read_at.pop(topic, None), topic not in self._unread
        self._unread.discard(topic)
        self._asked_at.pop(topic, None)
        self._hot_until.pop(topic, None)
        self._at_once.pop(topic, None)
        self._used_until.pop(topic, None)
        self._used.pop(topic, None)
        self._unused.pop(topic, None)
        return None if since is None else (since, is_read)

    def note_read(self, topic: str, read_at: float) -> None:
        """Note that an answer to a question asked at an instant has come."""
        if topic in self._read_at:
            self._read_at[topic] = max(read_at, self._read_at[topic])
            self._unread.discard(topic)

    @property
    def unread(self) -> int:
        """Number of topics that were never read."""
        return len(self._unread)

    def is_used(self, topic: str, now: float) -> None:
        """Something shows that a topic has consumers or traffic."""
        if topic in self._asked_at:
            self._used_until[topic] = now + USED_SECONDS
            if topic in self._unused:
                del self._unused[topic]
                self._used[topic] = None

    def heat(self, topic: str, now: float) -> None:
        """Something says that a topic changes: it is looked at soon, and often for a while."""
        if topic in self._asked_at:
            self._hot_until[topic] = now + HOT_SECONDS
            self._at_once[topic] = 0.0

    def hurry(self, topic: str, not_before: float = 0.0) -> None:
        """A topic that is to be looked at next, not before `not_before`."""
        if topic in self._asked_at:
            self._at_once[topic] = not_before

    @property
    def untried(self) -> int:
        """Topics that were never looked at, or are to be looked at next."""
        return len(self._at_once)

    def next(self, now: float) -> str | None:
        """The topic to look at now; None: all were, a moment ago."""
        self._hot_next = not self._hot_next
        first, second = (self._next_hot, self._next_in_turn) if self._hot_next else (self._next_in_turn, self._next_hot)
        return self._taken(first(now) or second(now), now)

    def next_at_once(self, now: float) -> str | None:
        """The topic of which something says that it has changed; None: there is none."""
        return self._taken(
            next((topic for topic, not_before in islice(self._at_once.items(), 64) if now >= not_before), None), now
        )

    def _taken(self, topic: str | None, now: float) -> str | None:
        if topic is not None:
            self._asked_at[topic] = now
            self._at_once.pop(topic, None)
        return topic

    def oldest_seconds(self, now: float, used: bool = False) -> float:
        """Return the longest time since a topic (with `used`, in use) was last read or became known."""
        read = (read_at for topic, read_at in self._read_at.items() if not used or self._counts_as_used(topic, now))
        return max((now - read_at for read_at in read), default=0.0)

    def _counts_as_used(self, topic: str, now: float) -> bool:
        return self._used_until.get(topic, float("-inf")) > now

    def _next_hot(self, now: float) -> str | None:
        for topic, not_before in islice(self._at_once.items(), 64):
            if now >= not_before:
                return topic
        for topic, until in list(islice(self._hot_until.items(), 64)):
            if now > until:
                del self._hot_until[topic]
            elif now - self._asked_at[topic] >= self.pause:
                # To the end, so that hot topics, too, have their turns.
                self._hot_until[topic] = self._hot_until.pop(topic)
                return topic
        return None

    def _next_in_turn(self, now: float) -> str | None:
        self._turns += 1
        for turn in (self._used, self._unused) if self._turns % UNUSED_TURN else (self._unused, self._used):
            if (topic := self._next_of(turn, now)) is not None:
                return topic
        return None

    def _next_of(self, turn: OrderedDict[str, None], now: float) -> str | None:
        for _ in range(min(len(turn), 64)):
            topic, _ = turn.popitem(last=False)
            # Hot topics are looked at out of turn: the one behind them may be due.
            (turn if turn is self._unused or self._counts_as_used(topic, now) else self._unused)[topic] = None
            if now - self._asked_at[topic] >= self.pause:
                return topic
        return None
