"""Fair queue of requests per client, so that a client at full speed barely slows the others.

It slows them by no more than they slow each other.

All calls share one interpreter and one store, so a call takes as long as there are calls beside it. While a client is
alone it may have a few calls at work; as soon as another one is around, each has one at a time, and the others of its
calls wait in its own queue. When there are more clients than calls that can be at work, they take turns.

Lives in one event loop. A call that waits for Kafka, and so takes nothing of what is shared, lets the next one go on
(`let_others_go_on`, from any thread).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

MAX_AT_WORK = 32
"""Calls of all clients that are at work; the threads that do them are a few more."""
MAX_AT_WORK_ALONE = 4
"""Calls of one client that are at work while nobody else calls; more do not get more done."""
AROUND_SECONDS = 10.0
"""Time after its last call for which a client counts as being around."""

REFUSALS_PER_SECOND, REFUSALS_AT_ONCE = 20.0, 40
"""Of one network, while there are few."""
ALL_REFUSALS_PER_SECOND = 50.0
"""Of all networks, each of which has an equal part while they wait. One costs up to a millisecond of the loop."""
MAX_WAIT_SECONDS = 20.0
_BURST_SECONDS = REFUSALS_AT_ONCE / REFUSALS_PER_SECOND
"""Refusals of so long may go at once: the more networks there are, the fewer that is."""
_turn: ContextVar[WorkPermit | None] = ContextVar("turn", default=None)


class TooManyCalls(Exception):
    """More calls of one client wait than may; the message says what to do."""


@dataclass
class _Client:
    at_work: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class WorkPermit:
    """The permission of one call to be at work."""

    def __init__(self, who: str, give_back: Callable[[], None]) -> None:
        self.who = who
        """The client."""
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._is_held = True

    def end(self) -> None:
        """The call is done, or goes on without taking anything; harmless when it has ended. In the event loop."""
        if self._is_held:
            self._is_held = False
            # In the next round of the loop. A call that never waits would otherwise be over before the next one of its
            # client asks for a turn, and hundreds of them would run in one round while everybody else waits.
            self._loop.call_soon(self._give_back)


def current_turn() -> WorkPermit | None:
    """That of the call which is being answered, ended or not; None: nobody has called."""
    return _turn.get()


def let_others_go_on() -> None:
    """End the turn of the call that this thread works for: it waits for another system."""
    turn = _turn.get()
    if turn is not None and turn._is_held:
        turn._loop.call_soon_threadsafe(turn.end)


class Turns:
    """The calls of all clients of a process; a client is known by any text."""

    def __init__(
        self,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
        refusal: Callable[[str], Exception] = TooManyCalls,
    ) -> None:
        """Set up an empty queue.

        `max_waiting`: calls of one client that may wait; `refusal`: makes the exception raised for one more.
        """
        self._max_waiting, self._refusal = max_waiting, refusal
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        """Those with calls."""
        self._queue: OrderedDict[str, None] = OrderedDict()
        """Those whose calls wait, the next one first."""
        self._seen: OrderedDict[str, float] = OrderedDict()
        """When each client has called or was answered last, the last one at the end."""
        self._at_work = 0

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[WorkPermit]:
        """A turn for a call of a client; raises the `refusal` when too many of its calls wait already."""
        client = self._clients.setdefault(who, _Client())
        if len(client.waiting) >= self._max_waiting:
            raise self._refusal(
                f"{self._max_waiting} calls of this client wait already: call again when some are answered"
            )
        self._see(who)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client.waiting.append(ready)
        self._queue.setdefault(who)
        self._go_on()
        try:
            await ready
        except asyncio.CancelledError:
            if not ready.cancelled():
                self._give_back(who)
            else:
                with contextlib.suppress(ValueError):
                    client.waiting.remove(ready)
                self._forget(who)
            raise
        turn = WorkPermit(who, lambda: self._give_back(who))
        before = _turn.set(turn)
        try:
            yield turn
        finally:
            _turn.reset(before)
            turn.end()

    def _go_on(self) -> None:
        """Begin what can begin; a client whose call has begun goes to the end of the queue."""
        for who in tuple(self._queue):
            client = self._clients[who]
            limit = 1 if self._has_company(who) else MAX_AT_WORK_ALONE
            while client.waiting and client.at_work < limit and self._at_work < MAX_AT_WORK:
                ready = client.waiting.popleft()
                if ready.cancelled():
                    continue
                ready.set_result(None)
                client.at_work += 1
                self._at_work += 1
                self._queue.move_to_end(who)
            if not client.waiting:
                del self._queue[who]
            if self._at_work >= MAX_AT_WORK:
                return

    def _give_back(self, who: str) -> None:
        self._clients[who].at_work -= 1
        self._at_work -= 1
        self._see(who)
        self._forget(who)
        self._go_on()

    def _forget(self, who: str) -> None:
        client = self._clients.get(who)
        if client is not None and not client.waiting:
            self._queue.pop(who, None)
            if not client.at_work:
                del self._clients[who]

    def _see(self, who: str) -> None:
        now = self._clock()
        self._seen[who] = now
        self._seen.move_to_end(who)
        while next(iter(self._seen.values())) < now - AROUND_SECONDS:
            self._seen.popitem(last=False)

    def _has_company(self, who: str) -> bool:
        """Return whether another client called or was answered in the last `AROUND_SECONDS`."""
        last = next((other for other in reversed(self._seen) if other != who), None)
        return last is not None and self._seen[last] >= self._clock() - AROUND_SECONDS


class Pace:
    """Pace of refusals: the instant at which the next refusal of each network may go.

    Whoever is refused at full speed waits, and costs nothing meanwhile: for what an app refuses (`anonymous`), for what
    is refused before it is parsed (`protocol`), and for connections that are closed or left (`connections`).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()
        """Less what may go at once; the network that was refused last at the end."""

    def wait(self, network: str) -> float:
        """Count a refusal, and return the seconds until it may go; 0 or less: now."""
        now = self._clock()
        while self._free_at and next(iter(self._free_at.values())) < now - MAX_WAIT_SECONDS:
            self._free_at.popitem(last=False)
        seconds = max(1 / REFUSALS_PER_SECOND, len(self._free_at) / ALL_REFUSALS_PER_SECOND)
        free_at = max(self._free_at.get(network, float("-inf")), now - _BURST_SECONDS) + seconds
        # Never further ahead than anybody waits, so that who stops is soon free again.
        self._free_at[network] = min(free_at, now + MAX_WAIT_SECONDS)
        self._free_at.move_to_end(network)
        return min(free_at - now, MAX_WAIT_SECONDS)

    def is_ahead(self, network: str) -> bool:
        """Tell if a further refusal would have to wait, without counting one."""
        return self._free_at.get(network, float("-inf")) > self._clock()


def network_of(address: str) -> str:
    """Return the network that an address is counted under: the address itself, or an IPv6 address's /64."""
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(address)
        if parsed.version == 6:
            return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return address
