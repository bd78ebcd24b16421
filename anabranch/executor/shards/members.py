"""Membership of the executors of one lake, the assignment of shards, and their parts of rate limits.

Pure.

Stage: under `holding`. Clocks of two machines are never compared: a member is alive while its heartbeat changes, and
dead after it has been silent for its promised interval, by the observer's monotonic clock. A shard's token is the
register's version at which it was taken, so every holder has a higher token than those before it.
"""

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from schemas.settings.brakes import BrakeSettings


def shard_of(subject: str, shards: int) -> int:
    """Return the shard of a subject, from 0."""
    return zlib.crc32(subject.encode("utf-8", "surrogatepass")) % shards


@dataclass(frozen=True)
class Member:
    """One executor."""

    name: str
    """Unique over all processes ever; shown to operators."""
    mode: str
    of: int
    """Number of shards into which it divides the subjects."""
    seconds: float
    """Promised interval: without a heartbeat for this long, it is dead."""
    since: datetime
    beat: int = 0
    tokens: tuple[tuple[int, int], ...] = ()
    """Its shards, each with its token."""
    at: datetime | None = None
    """Instant of its last heartbeat by its own clock; for operators only, never compared."""

    @property
    def shards(self) -> tuple[int, ...]:
        """Its shards."""
        return tuple(shard for shard, _ in self.tokens)


Members = tuple[Member, ...]
"""In order of arrival."""


class Unlike(Exception):
    """An executor with other settings is at work; the message names it and says what to do."""

    def __init__(self, other: Member, me: Member) -> None:
        super().__init__(
            f"the executor {other.name} is at work on this lake with {other.of} shards in mode {other.mode}, "
            f"this one has {me.of} in mode {me.mode}: give all the same [executor] shards and mode, or stop it"
        )
        self.other = other.name


class Removed(Exception):
    """The other executors have declared this one dead."""


def after_beat(
    members: Members, me: Member, number: int, dead: Collection[str], given_back: Collection[int]
) -> Members:
    """Return the members after a heartbeat of `me`, new or known; `number`: the register's next version.

    Removes dead members, releases the shards in `given_back`, and takes free ones up to the fair share. Raises
    `Removed` or `Unlike`.
    """
    alive = [member for member in members if member.name == me.name or member.name not in dead]
    if (own := next((member for member in alive if member.name == me.name), None)) is None:
        if me.beat:
            raise Removed
        for other in alive:
            if (other.of, other.mode) != (me.of, me.mode):
                raise Unlike(other, me)
        own = me
        alive.append(me)
    tokens = [(shard, token) for shard, token in own.tokens if shard not in given_back]
    held = {shard for member in alive if member.name != me.name for shard in member.shards}
    held |= {shard for shard, _ in tokens}
    part = fair_part([member.name for member in alive], me.name, me.of)
    free = [shard for shard in range(me.of) if shard not in held]
    tokens += [(shard, number) for shard in free[: max(0, part - len(tokens))]]
    mine = replace(own, beat=own.beat + 1, tokens=tuple(sorted(tokens)), at=me.at)
    return tuple(mine if member.name == me.name else member for member in alive)


def fair_part(names: list[str], me: str, shards: int) -> int:
    """Return the number of shards a member should have: an equal share, rounded up for the first."""
    index = names.index(me)
    return shards // len(names) + (index < shards % len(names))


def excess(members: Members, me: str) -> tuple[int, ...]:
    """Return the shards of a member beyond its fair share: others wait for them."""
    mine = next(member for member in members if member.name == me)
    return mine.shards[fair_part([member.name for member in members], me, mine.of) :]


@dataclass
class HeartbeatWatch:
    """Latest observed heartbeats of the members, by the observer's monotonic clock."""

    seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    """Members with a heartbeat since the first look."""

    def dead(self, members: Members, before: float, after: float) -> frozenset[str]:
        """Return the members that have been silent for their promised interval.

        `before`, `after`: seconds of the monotonic clock, before and after the look that returned `members`.
        """
        names = set()
        for member in members:
            if member.name in self.seen and self.seen[member.name][0] != member.beat:
                self.heard.add(member.name)
            beat, seen_at = self.seen.get(member.name, (-1, after))
            if beat != member.beat:
                self.seen[member.name] = (member.beat, after)
            elif before - seen_at >= member.seconds:
                names.add(member.name)
        self.seen = {member.name: self.seen[member.name] for member in members}
        return frozenset(names)


def part_of(limits: BrakeSettings, shard: int, shards: int) -> BrakeSettings:
    """Return the limits of one shard, numbered from 0. A limit of 0 (none) stays; no part becomes 0.

    Shards count their calls separately, in different processes. The parts add up to the limit, so all shards together
    never exceed it. Failures are on record and counted over all shards (`anabranch.executor.kernel.outcomes`).
    """
    names = ("actions_per_minute", "actions_per_minute_per_namespace")
    return limits.model_copy(update={name: _part(getattr(limits, name), shard, shards) for name in names})


def _part(limit: int, shard: int, shards: int) -> int:
    return limit and max(1, limit // shards + (shard < limit % shards))
