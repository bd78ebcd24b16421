"""Separate threads for work that waits for segments: nothing else waits for an unreachable Kafka.

Stage: between the event loop (routes, sessions, housekeeping) and a `SegmentStore`, each of whose calls may last until
its time-out. Work on request and background work are bounded separately, so that neither takes the other's threads; the
rest of a node runs on threads that neither can take.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from runtime.listener.fair_queue import current_turn

P = ParamSpec("P")
T = TypeVar("T")

MAX_ASKED, MAX_BY_ITSELF = 16, 6
"""Maximum number of threads for work on request, and for background work."""
MAX_OF_ONE_CLIENT = 12
"""Maximum number of the former for one client: the others are left to other clients."""

_asked: RunVar[CapacityLimiter] = RunVar("asked")
_of_clients: RunVar[WeakValueDictionary[str, CapacityLimiter]] = RunVar("of_clients")
_by_itself: RunVar[CapacityLimiter] = RunVar("by_itself")


async def on_request(call: Callable[[], T]) -> T:
    """Run `call` for a waiting caller and return its result. If the caller gives up, it runs to its end."""
    if (turn := current_turn()) is None:
        return await run_sync(call, limiter=_limiter(_asked, MAX_ASKED), abandon_on_cancel=True)
    try:
        limiters = _of_clients.get()
    except LookupError:
        _of_clients.set(limiters := WeakValueDictionary())
    if (own := limiters.get(turn.who)) is None:
        own = limiters[turn.who] = CapacityLimiter(MAX_OF_ONE_CLIENT)
    if not own.available_tokens:
        # All its threads may be waiting for Kafka; release the turn for other calls of this client.
        turn.end()
    async with own:
        return await run_sync(call, limiter=_limiter(_asked, MAX_ASKED), abandon_on_cancel=True)


async def by_itself(call: Callable[[], T]) -> T:
    """Run `call` as background work of the node, like checks of progress, pruning, resumed operations."""
    return await run_sync(call, limiter=_limiter(_by_itself, MAX_BY_ITSELF), abandon_on_cancel=True)


def waits_for_segments(route: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Make a route run `on_request` instead of on the threads of all other routes."""

    @functools.wraps(route)
    async def run(*arguments: P.args, **named: P.kwargs) -> T:
        return await on_request(functools.partial(route, *arguments, **named))

    # FastAPI reads the parameters from the signature: resolve annotations in the module that defines the route.
    run.__signature__ = inspect.signature(route, eval_str=True)  # type: ignore[attr-defined]
    return run


def _limiter(variable: RunVar[CapacityLimiter], most: int) -> CapacityLimiter:
    """Return the limiter of this event loop."""
    try:
        return variable.get()
    except LookupError:
        variable.set(CapacityLimiter(most))
        return variable.get()
