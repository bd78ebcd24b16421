"""Checks of a request that need no token, and the pace of answers to clients that have none.

A refusal is answered at a pace by network: whoever is refused at full speed waits, and costs nothing meanwhile.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote

from starlette.types import Message, Scope, Send

from runtime.listener.bodies import BrokenOff
from runtime.listener.fair_queue import Pace, Turns, WorkPermit, network_of
from runtime.listener.heads import TOO_LARGE_HEAD, is_large_head
from runtime.listener.names import NodeNames
from runtime.listener.protocol import CLIENT_LEFT, TRUST

MAX_PROBE_SECONDS = 0.8
"""That the probe of a network which asks at full speed waits; an orchestrator gives up on one after a second."""
MAX_SOON_PROBES = 64
"""Of all networks that wait no longer than that: an equal part of each, and at least one. The others have the pace."""


class ConnectionRefusal(NamedTuple):
    """Reason for refusing a request, with its HTTP status."""

    status: int
    reason: str

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer besides those of its body."""
        return {"Retry-After": "1"} if self.status == 429 else {}


def refusal_of(scope: Scope, names: NodeNames, max_head_bytes: int) -> ConnectionRefusal | None:
    """Return the refusal that no token changes: an oversized head, a foreign name or a foreign origin."""
    target = raw_path(scope) + scope["query_string"].decode("latin-1")
    if is_large_head(target, scope["headers"], max_head_bytes):
        return ConnectionRefusal(431, TOO_LARGE_HEAD)
    reason = names.refusal(scope["headers"])
    return None if reason is None else ConnectionRefusal(403, reason)


def raw_path(scope: Scope) -> str:
    """Return the path as it was sent, with its percent triplets."""
    raw = scope.get("raw_path")
    return raw.decode("ascii", "replace") if raw is not None else quote(scope["path"])


def network(scope: Scope) -> str:
    """Return the address, or the /64 of an IPv6 address, that counts as one anonymous client."""
    return network_of(str((scope.get("client") or [""])[0]))


def trusted_refusal(scope: Scope, client: str) -> ConnectionRefusal | None:
    """Count the connection as one of a client with a known token, so that it gives way to nobody.

    Return the refusal if the client holds too many.
    """
    trust = scope.get("state", {}).get(TRUST)
    if trust is None or trust(client):
        return None
    return ConnectionRefusal(429, "this client holds too many connections: close some, or use them again")


def end_turn(turn: WorkPermit, send: Send) -> Send:
    """Return `send`, which ends the turn when the answer begins.

    From there on a request takes only the time that its client takes to read: a stream, or somebody who reads nothing.
    """

    async def first(message: Message) -> None:
        turn.end()
        await send(message)

    return first


class AnonymousClients:
    """Turns and pace of what is answered without a token, by network. Lives in one event loop."""

    def __init__(
        self,
        turns: Turns,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], asyncio.Future[None]] | None = None,
    ) -> None:
        self._turns, self._sleep = turns, sleep or asyncio.sleep
        self._pace, self._probes = Pace(clock), Pace(clock)
        self._probing = Counter[str]()
        """Probes of each network that wait."""

    async def probe(self, scope: Scope) -> bool:
        """Wait until a probe may be answered: at once, unless its network asks at full speed.

        Return False when its client has left meanwhile.
        """
        who = network(scope)
        seconds = self._probes.wait(who)
        if self._probing[who] < max(1, MAX_SOON_PROBES // max(1, len(self._probing))):
            seconds = min(seconds, MAX_PROBE_SECONDS)
        self._probing[who] += 1
        try:
            return await self._wait(scope, seconds)
        finally:
            self._probing[who] -= 1
            if not self._probing[who]:
                del self._probing[who]

    async def _wait(self, scope: Scope, seconds: float) -> bool:
        """Return False as soon as the client leaves, so that its request takes no memory any more."""
        if seconds <= 1e-6:
            return True
        if (departure := scope.get("state", {}).get(CLIENT_LEFT)) is None:
            await self._sleep(seconds)
            return True
        return not (await asyncio.wait({departure}, timeout=seconds))[0]

    @asynccontextmanager
    async def turn(self, scope: Scope, is_paced: bool) -> AsyncIterator[WorkPermit]:
        """A turn for a request, after the wait of a paced one. Raises `BrokenOff`, and what `Turns` raises."""
        who = network(scope)
        if is_paced and not await self._wait(scope, self._pace.wait(who)):
            raise BrokenOff
        async with self._turns.turn(who) as turn:
            yield turn
