"""Heartbeats of one executor: renew membership, start assigned shards, release surplus ones.

Stage: under `anabranch.executor.process`; runs in the main thread of the process. A lease on a shard lasts `seconds`
from just before the newest recorded heartbeat, by a clock that goes on while the machine is suspended. A call is begun
only if its time-out ends before that, and nobody takes over a shard until its member has been silent for as long. So
two members never have a call out for one subject. One case is not covered: a process that is frozen between reading the
clock and sending the first byte (docs/design.md).
"""

import logging
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Generic, Protocol, TypeVar

from deltalake.exceptions import DeltaError

from anabranch.executor.shards.members import HeartbeatWatch, Member, Members, Removed, Unlike, after_beat, excess
from anabranch.executor.shards.register import MemberRegister
from lake.lease import LeaseLost
from lake.register import Raced

log = logging.getLogger(__name__)

BEATS = 6
"""Heartbeats per promised interval; the member looks at the others five times as often.

In an object store, where each look is a request, half of the time in which calls may begin lies between two heartbeats,
and the member looks only with them.
"""
MAX_LOOK_SECONDS = 1.0
LEAVE_SECONDS = 10.0
"""Longest wait for the work to end at a clean stop."""
START_LOOK_SECONDS = 0.02
"""Interval between looks until the work has begun."""


class Work(Protocol):
    """Executor at work on one shard."""

    def stop(self) -> None:
        """Ask the work to end; returns at once."""

    @property
    def open_decisions(self) -> int | None:
        """Number of open decisions; None: the record has not been read yet."""

    @property
    def ended(self) -> bool:
        """True once it has ended with no call out. Raises the error that it failed with."""


def lease_clock() -> float:
    """Return seconds of a monotonic clock that, on Linux, goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


SomeWork = TypeVar("SomeWork", bound=Work)


class StopSignal:
    """Signal that ends a `Holding`; safe in signal handlers, where setting an event could deadlock."""

    def __init__(self) -> None:
        self._told, self._is_set = queue.SimpleQueue[None](), False

    def set(self) -> None:
        """Set the signal. From any thread, and from signal handlers."""
        self._is_set = True
        self._told.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the signal is set."""
        if not self._is_set:
            with suppress(queue.Empty):
                self._told.get(timeout=seconds)
        return self._is_set


class Holding(Generic[SomeWork]):
    """One member and the work on its shards."""

    def __init__(
        self,
        register: MemberRegister,
        me: Member,
        call_seconds: float,
        begin: Callable[[int, int, Callable[[], bool]], SomeWork],
        lease: Callable[[], float] = lease_clock,
        watch: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """`begin` starts work on a shard: number, token, function that says whether a call may begin.

        `call_seconds`: longest duration of a call. `lease`: clock of its own leases. `watch`: clock for the silence of
        others. It may stop while the machine is suspended; otherwise members suspended together would take each other
        for dead.
        """
        self._register, self._me, self._begin = register, me, begin
        self._lease_clock, self._watch_clock, self._wall = lease, watch, wall
        self._call_seconds = call_seconds
        self._watch = HeartbeatWatch()
        self._works: dict[int, SomeWork] = {}
        self._leaving: set[int] = set()
        self._holds_until = float("-inf")
        self._beat_at = self._look_at = float("-inf")
        self._beat_seconds = (me.seconds - call_seconds) / 2 if register.is_remote else me.seconds / BEATS
        self._waits = False
        self.looped_at = watch()
        """Time of the last pass of `run`, by the clock `watch`."""

    @property
    def is_member(self) -> bool:
        """True if the other executors count this one as a member."""
        return self._me.beat > 0

    @property
    def works(self) -> list[SomeWork]:
        """Work on each of its shards. For any thread."""
        return list(self._works.values())

    def may_call(self) -> bool:
        """Return whether a call begun now ends within the lease. For any thread."""
        return self._lease_clock() + self._call_seconds <= self._holds_until

    def run(self, stop: StopSignal, ready: Callable[[dict[int, int]], None] = lambda _: None) -> None:
        """Send heartbeats until `stop`, then end the work and release all shards.

        `ready` gets the open decisions of each shard once their records have been read for the first time. Raises
        `LeaseLost`, `Unlike`, and the errors of the work.
        """
        step = min(MAX_LOOK_SECONDS, self._me.seconds / (5 * BEATS))
        is_ready = False
        try:
            while not self.is_member and not stop.wait(START_LOOK_SECONDS):
                self.looped_at = self._watch_clock()
                self._join()
            while not stop.wait(step if is_ready else min(step, START_LOOK_SECONDS)):
                if not is_ready and all(work.open_decisions is not None for work in self._works.values()):
                    ready({shard: work.open_decisions or 0 for shard, work in sorted(self._works.items())})
                    is_ready = True
                self.looped_at = self._watch_clock()
                self.beat()
        finally:
            self._leave()

    def _join(self) -> None:
        """Send the first heartbeat. Raises `Unlike` when executors with other settings are present."""
        try:
            self._look_and_beat()
        except Raced:
            return
        except Unlike as unlike:
            if unlike.other in self._watch.heard:
                raise
            if not self._waits:
                log.warning("waiting up to %g s for a sign of life: %s", self._me.seconds, unlike)
                self._waits = True

    def beat(self) -> None:
        """Look at the members once; send a heartbeat if one is due or something has to change."""
        for shard, work in list(self._works.items()):
            if work.ended and shard not in self._leaving:
                raise RuntimeError(f"the work on shard {shard} has ended by itself")
        if self._lease_clock() < self._look_at and not any(self._works[shard].ended for shard in self._leaving):
            return
        try:
            self._look_and_beat()
        except Raced as error:
            log.debug("another executor has changed the register meanwhile, looking again: %s", error)
        except (DeltaError, OSError) as error:
            log.warning("the register of the executors cannot be read or written, trying again: %s", error)

    def _look_and_beat(self) -> None:
        now, watched_since = self._lease_clock(), self._watch_clock()
        number, members = self._register.read()
        dead = self._watch.dead(members, watched_since, self._watch_clock()) - {self._me.name}
        given_back = {shard for shard in self._leaving if self._works[shard].ended}
        try:
            changed = after_beat(members, replace(self._me, at=self._wall()), number + 1, dead, given_back)
        except Removed:
            raise LeaseLost(
                f"other executors have taken this one ({self._me.name}) for dead, as it was silent for "
                f"{self._me.seconds:g} s, and have taken over its shards. It stops; a new one may start at any time"
            ) from None
        mine = next(member for member in changed if member.name == self._me.name)
        own = next((member for member in members if member.name == self._me.name), None)
        if now >= self._beat_at or dead or own is None or own.tokens != mine.tokens:
            for name in dead:
                log.warning("the executor %s was silent for longer than it had promised: its shards are free", name)
            self._register.replace(changed)
            self._me, self._holds_until, self._beat_at = mine, now + mine.seconds, now + self._beat_seconds
            members = changed
            for shard in given_back:
                del self._works[shard]
                self._leaving.discard(shard)
        self._look_at = self._beat_at if self._register.is_remote else now
        self._follow(members)

    def _follow(self, members: Members) -> None:
        """Start work on newly assigned shards, and stop it on surplus ones."""
        for shard, token in self._me.tokens:
            if shard not in self._works:
                log.info("shard %d of %d is taken, lease token %d", shard, self._me.of, token)
                self._works[shard] = self._begin(shard, token, self.may_call)
        for shard in excess(members, self._me.name):
            if shard not in self._leaving:
                log.info("shard %d of %d is left to another executor", shard, self._me.of)
                self._leaving.add(shard)
                self._works[shard].stop()

    def _leave(self) -> None:
        """Stop the work and release all shards at once. Never raises: the lease runs out instead."""
        for work in self._works.values():
            work.stop()
        end = time.monotonic() + LEAVE_SECONDS
        try:
            while not all(work.ended for work in self._works.values()):
                if time.monotonic() > end:
                    raise TimeoutError("a call is still out")
                time.sleep(0.02)
        except Exception as error:
            log.warning("the shards are not given back, so their lease runs out: %s", error)
            return
        for _ in range(20):
            try:
                _, members = self._register.read()
                remaining = tuple(member for member in members if member.name != self._me.name)
                if remaining != members:
                    self._register.replace(remaining)
                return
            except Raced:
                continue
            except (DeltaError, OSError) as error:
                log.warning("the shards are not given back, so their lease runs out: %s", error)
                return
