"""Limits of one client of a node: sessions, waiting bytes, registrations per second, turns.

A client is a token; without tokens all share one. Lives in one event loop.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anabranch.controller.errors import TooMany
from runtime.listener.fair_queue import Turns

BURST_SECONDS = 10.0
"""Length, in seconds of the allowed rate, of a burst of registrations, as after the end of a node."""
RETRY_SECONDS = 5
"""Delay suggested to a client with too many sessions."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits per client and node; the keys of `[controller.limits]` with the same names."""

    waiting_calls: int
    sessions: int
    """Watch sessions, and connections of consumers."""
    waiting_bytes: int
    """Bodies of calls that arrive or queue, and messages waiting to be sent to its consumers."""
    registrations_per_second: float
    """Registrations of subscriptions and consumers, and new sessions."""


class Client:
    """Current use of a node by one client."""

    def __init__(self, name: str, limits: ClientLimits, clock: Callable[[], float]) -> None:
        self.name = name
        self._limits, self._clock = limits, clock
        self._sessions = self._bytes = 0
        self._may_register, self._counted_at = limits.registrations_per_second * BURST_SECONDS, clock()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Count a session for the duration of the block. Raises `TooMany`."""
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
        """Count a registration. Raises `TooMany`."""
        wait = self._wait()
        if wait > 0:
            rate = self._limits.registrations_per_second
            raise TooMany(f"{self.name} registers more than {rate:g} times a second", math.ceil(wait))
        self._may_register -= 1

    async def wait_to_register(self) -> None:
        """Count a registration as soon as the rate allows it."""
        while (wait := self._wait()) > 0:
            await asyncio.sleep(wait)
        self._may_register -= 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts waiting bytes until the end of the block; it raises `TooMany`."""
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
        """Count waiting bytes; return False if they exceed the limit."""
        if self._bytes + size > self._limits.waiting_bytes:
            return False
        self._bytes += size
        return True

    def unqueue(self, size: int) -> None:
        """Stop counting bytes."""
        self._bytes -= size

    def _wait(self) -> float:
        """Return seconds until the next registration is allowed."""
        rate, now = self._limits.registrations_per_second, self._clock()
        gained = (now - self._counted_at) * rate
        self._may_register = min(self._may_register + gained, max(1.0, rate * BURST_SECONDS))
        self._counted_at = now
        return max(0.0, (1 - self._may_register) / rate)


class LimitedClients:
    """All clients of a node, one per token."""

    def __init__(self, limits: ClientLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.turns = Turns(limits.waiting_calls, clock, TooMany)
        self._limits, self._clock = limits, clock
        self._clients: dict[str, Client] = {}

    def client(self, name: str) -> Client:
        """Return the client with this token name."""
        if name not in self._clients:
            self._clients[name] = Client(name, self._limits, self._clock)
        return self._clients[name]
