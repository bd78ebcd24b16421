"""What one client of a node can have at a time: sessions, bytes that wait for it, registrations a second, turns.

Stage: made by `controller.app`, asked by what carries sessions and takes registrations. A client is a token; without
tokens all are one. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controller.errors import TooMany
from listener.turns import Turns

BURST_SECONDS = 10.0
"""Registrations of so many seconds may come at once, as after the end of a node."""
RETRY_SECONDS = 5
"""Time after which a client with too many sessions is asked to come again."""


@dataclass(frozen=True)
class ClientLimits:
    """Of one client at one node; the keys of `[controller.limits]` with the same names."""

    waiting_calls: int
    sessions: int
    """Watch sessions, and connections of consumers."""
    waiting_bytes: int
    """Bodies of calls that arrive or wait for their turns, and messages that wait to be sent to its consumers."""
    registrations_per_second: float
    """Subscriptions and consumers that register, and sessions that begin."""


class Client:
    """What one client has."""

    def __init__(self, name: str, limits: ClientLimits, clock: Callable[[], float]) -> None:
        self.name = name
        self._limits, self._clock = limits, clock
        self._sessions = self._bytes = 0
        self._may_register, self._counted_at = limits.registrations_per_second * BURST_SECONDS, clock()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """A session that lasts as long as the block. `TooMany`."""
        if self._sessions >= self._limits.sessions:
            raise TooMany(
                f"{self.name} has {self._sessions} sessions at this node, and more are not possible", RETRY_SECONDS
            )
        self.register()
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1

    def register(self) -> None:
        """Count a registration. `TooMany`."""
        wait = self._wait()
        if wait > 0:
            rate = self._limits.registrations_per_second
            raise TooMany(f"{self.name} registers more than {rate:g} times a second", math.ceil(wait))
        self._may_register -= 1

    async def wait_to_register(self) -> None:
        """Count a registration as soon as it is possible."""
        while (wait := self._wait()) > 0:
            await asyncio.sleep(wait)
        self._may_register -= 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[int], None]]:
        """Bytes that wait until the end of the block: it counts so many more with what it is given. `TooMany`."""
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            if not self.queue(size):
                raise TooMany(
                    f"calls of {self.name} with {self._bytes} bytes wait already: call again when some are answered"
                )
            counted += size

        try:
            yield count
        finally:
            self.unqueue(counted)

    def queue(self, size: int) -> bool:
        """Count bytes that wait; False: they would be too many."""
        if self._bytes + size > self._limits.waiting_bytes:
            return False
        self._bytes += size
        return True

    def unqueue(self, size: int) -> None:
        """Bytes wait no more."""
        self._bytes -= size

    def _wait(self) -> float:
        """Seconds until the next registration."""
        rate, now = self._limits.registrations_per_second, self._clock()
        gained = (now - self._counted_at) * rate
        self._may_register = min(self._may_register + gained, max(1.0, rate * BURST_SECONDS))
        self._counted_at = now
        return max(0.0, (1 - self._may_register) / rate)


class Clients:
    """All clients of a node; there are as many as tokens."""

    def __init__(self, limits: ClientLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.turns = Turns(limits.waiting_calls, clock, TooMany)
        self._limits, self._clock = limits, clock
        self._clients: dict[str, Client] = {}

    def client(self, name: str) -> Client:
        """The client with this token name."""
        if name not in self._clients:
            self._clients[name] = Client(name, self._limits, self._clock)
        return self._clients[name]
