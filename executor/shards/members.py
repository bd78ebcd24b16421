"""Pure: the executors of one lake, who has which shard, and what one of them changes at a beat.

Stage: under `holding`. Nobody compares clocks of two machines: whoever beats is alive, and whoever has not beaten for
as long as it promised to, by the steady clock of who watches, is dead. A shard's token is the number of the register
at which it was taken, so every holder has a higher one than those before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime


def shard_of(subject: str, shards: int) -> int:
    """The shard of a subject, from 0."""
    return zlib.crc32(subject.encode("utf-8", "surrogatepass")) % shards


@dataclass(frozen=True)
class Member:
    """One executor."""

    name: str
    """For people, and unique: no two processes ever have the same."""
    mode: str
    of: int
    """The number of shards that it divides subjects into."""
    seconds: float
    """It is dead when it has not beaten for so long."""
    since: datetime
    beat: int = 0
    tokens: tuple[tuple[int, int], ...] = ()
    """The shards that it has, each with its token."""
    at: datetime | None = None
    """Of its last beat, by its own clock; for people, and compared with nothing."""

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that it has."""
        return tuple(shard for shard, _ in self.tokens)


Members = tuple[Member, ...]
"""In the order in which they came."""


class Unlike(Exception):
    """An executor with other settings is at work; the message says which and what to do."""

    def __init__(self, other: Member, me: Member) -> None:
        super().__init__(
            f"the executor {other.name} is at work on this lake with {other.of} shards in mode {other.mode}, "
            f"this one has {me.of} in mode {me.mode}: give all the same [executor] shards and mode, or stop it"
        )
        self.other = other.name


class Removed(Exception):
    """This executor was taken for dead."""


def after_beat(
    members: Members, me: Member, number: int, dead: Collection[str], given_back: Collection[int]
) -> Members:
    """The members after a beat of `me`, whether it comes or goes on; `number` is the register's after it.

    It removes who is dead, gives back shards that it has stopped to work on, and takes what is free up to its part.
    Raises `Removed` or `Unlike`.
    """
    alive = [member for member in members if member.name == me.name or member.name not in dead]
    known = next((member for member in alive if member.name == me.name), None)
    if known is None:
        if me.beat:
            raise Removed
        for other in alive:
            if (other.of, other.mode) != (me.of, me.mode):
                raise Unlike(other, me)
        known = me
        alive.append(me)
    tokens = [(shard, token) for shard, token in known.tokens if shard not in given_back]
    held = {shard for member in alive if member.name != me.name for shard in member.shards}
    held |= {shard for shard, _ in tokens}
    part = fair_part([member.name for member in alive], me.name, me.of)
    free = [shard for shard in range(me.of) if shard not in held]
    tokens += [(shard, number) for shard in free[: max(0, part - len(tokens))]]
    mine = replace(known, beat=known.beat + 1, tokens=tuple(sorted(tokens)), at=me.at)
    return tuple(mine if member.name == me.name else member for member in alive)


def fair_part(names: list[str], me: str, shards: int) -> int:
    """How many shards one of several members should have: the same number each, the first ones what is left over."""
    place = names.index(me)
    return shards // len(names) + (place < shards % len(names))


def excess(members: Members, me: str) -> tuple[int, ...]:
    """The shards that a member has beyond its part: others wait for them."""
    mine = next(member for member in members if member.name == me)
    return mine.shards[fair_part([member.name for member in members], me, mine.of) :]


@dataclass
class Watch:
    """When others were last seen to beat, by the steady clock of who watches."""

    seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    """Who has beaten since the first look."""

    def dead(self, members: Members, before: float, after: float) -> frozenset[str]:
        """Who has not beaten for as long as it promised.

        `before`, `after`: seconds of the steady clock, before and after the look that showed `members`.
        """
        found = set()
        for member in members:
            if member.name in self.seen and self.seen[member.name][0] != member.beat:
                self.heard.add(member.name)
            beat, at = self.seen.get(member.name, (-1, after))
            if beat != member.beat:
                self.seen[member.name] = (member.beat, after)
            elif before - at >= member.seconds:
                found.add(member.name)
        self.seen = {member.name: self.seen[member.name] for member in members}
        return frozenset(found)
