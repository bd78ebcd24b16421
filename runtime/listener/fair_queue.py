"""Fair queue of requests: a client at full speed slows others no more than they slow each other.

All calls share one interpreter and one store, so the duration of a call grows with the number of concurrent calls. A
client that is alone may have a few calls at work. As soon as another one is around, each has one at a time, and its
further calls wait in its own queue. If there are more clients than calls that can be at work, they take turns.

Lives in one event loop. A call that waits for Kafka, and so uses nothing shared, lets the next one continue
(`let_others_go_on`, from any thread).
"""

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
"""Most calls at work, of all clients; there are a few more threads."""
MAX_AT_WORK_ALONE = 4
"""Most calls at work of a client that is alone; more would not be faster."""
AROUND_SECONDS = 10.0
"""Time after its last call for which a client counts as being around."""
REFUSALS_PER_SECOND, REFUSALS_AT_ONCE = 20.0, 40
"""Refusals of one network, while there are few networks."""
ALL_REFUSALS_PER_SECOND = 50.0
"""Refusals of all networks, shared equally while they wait. One costs the loop up to a millisecond."""
MAX_WAIT_SECONDS = 20.0
_BURST_SECONDS = REFUSALS_AT_ONCE / REFUSALS_PER_SECOND
"""Time whose refusals may go at once; with more networks these are fewer."""
_turn: "ContextVar[WorkPermit | None]" = ContextVar("turn", default=None)


class TooManyCalls(Exception):
    """Too many calls of one client wait; the message says what to do."""


@dataclass
class _Client:
    at_work: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class WorkPermit:
    """Permission of one call to be at work."""

    def __init__(self, who: str, give_back: Callable[[], None]) -> None:
        self.who = who
        """The client."""
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._is_held = True

    def end(self) -> None:
        """Give the permit back, in the event loop; does nothing the second time.

        The call has ended, or continues without using anything shared.
        """
        if self._is_held:
            self._is_held = False
            # In the next round of the loop. Otherwise hundreds of calls that never wait would run in one round, each
            # over before the next one of its client asks for a turn, while all other clients wait.
            self._loop.call_soon(self._give_back)


def current_turn() -> WorkPermit | None:
    """Return the permit of the current call, ended or not; None: there is no call."""
    return _turn.get()


def let_others_go_on() -> None:
    """End the turn of this thread's call, which waits for another system."""
    turn = _turn.get()
    if turn is not None and turn._is_held:
        turn._loop.call_soon_threadsafe(turn.end)


class Turns:
    """Queue of the calls of all clients of a process; any text identifies a client."""

    def __init__(
        self,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
        refusal: Callable[[str], Exception] = TooManyCalls,
    ) -> None:
        """`max_waiting`: calls of one client that may wait; `refusal`: makes the exception for one more."""
        self._max_waiting, self._refusal, self._clock = max_waiting, refusal, clock
        self._clients: dict[str, _Client] = {}
        """Clients with calls."""
        self._queue: OrderedDict[str, None] = OrderedDict()
        """Clients whose calls wait, the next one first."""
        self._seen: OrderedDict[str, float] = OrderedDict()
        """Time of the last call or answer of each client, ascending."""
        self._at_work = 0

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[WorkPermit]:
        """Wait for a turn of a client's call; raise the `refusal` if too many of its calls wait already."""
        client = self._clients.setdefault(who, _Client())
        if len(client.waiting) >= self._max_waiting:
            raise self._refusal(
                f"{self._max_waiting} calls of this client wait already: call again when some are answered"
            )
        self._see(who)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client.waiting.append(ready)
        self._queue.setdefault(who)
        self._begin_calls()
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

    def _begin_calls(self) -> None:
        """Begin all calls that may; a client whose call begins goes to the end of the queue."""
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
        self._begin_calls()

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
        """Return True if another client called or was answered in the last `AROUND_SECONDS`."""
        last = next((other for other in reversed(self._seen) if other != who), None)
        return last is not None and self._seen[last] >= self._clock() - AROUND_SECONDS


class Pace:
    """Pace of refusals by network: a client that is refused at full speed waits and costs nothing.

    Used for refusals by an app (`anonymous`) and before parsing (`protocol`), and for connections that are closed or
    left (`connections`).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()
        """Time of the next refusal, less the burst; the network that was refused last at the end."""

    def wait(self, network: str) -> float:
        """Count a refusal and return the seconds to wait before it; 0 or less: none."""
        now = self._clock()
        while self._free_at and next(iter(self._free_at.values())) < now - MAX_WAIT_SECONDS:
            self._free_at.popitem(last=False)
        seconds = max(1 / REFUSALS_PER_SECOND, len(self._free_at) / ALL_REFUSALS_PER_SECOND)
        free_at = max(self._free_at.get(network, float("-inf")), now - _BURST_SECONDS) + seconds
        # Never further ahead than the longest wait, so that a client that stops is soon free again.
        self._free_at[network] = min(free_at, now + MAX_WAIT_SECONDS)
        self._free_at.move_to_end(network)
        return min(free_at - now, MAX_WAIT_SECONDS)

    def is_ahead(self, network: str) -> bool:
        """Return True if another refusal would have to wait; counts none."""
        return self._free_at.get(network, float("-inf")) > self._clock()


def network_of(address: str) -> str:
    """Return the network that an address is counted under: the address itself, or an IPv6 address's /64."""
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(address)
        if parsed.version == 6:
            return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return address
