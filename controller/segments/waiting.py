"""Work that waits for the segments, in threads of its own: when Kafka is away, nothing else of a node waits with it.

Stage: between whatever lives in the event loop (routes, sessions, housekeeping) and a `SegmentStore`, each of whose
calls may last until its timeout. Both kinds of work are bounded, so what looks after segments by itself does not take
the threads of those whom somebody asks for something; the rest of a node runs on threads that none of this can take.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from listener.turns import current_turn

P = ParamSpec("P")
T = TypeVar("T")

MAX_ASKED, MAX_BY_ITSELF = 16, 6
"""Threads at the same time: for what somebody waits for, and for what nobody has asked for."""
MAX_OF_ONE_CLIENT = 12
"""Of the former, for one client: the others are left to other clients."""

_asked: RunVar[CapacityLimiter] = RunVar("asked")
_of_clients: RunVar[WeakValueDictionary[str, CapacityLimiter]] = RunVar("of_clients")
_by_itself: RunVar[CapacityLimiter] = RunVar("by_itself")


async def on_request(call: Callable[[], T]) -> T:
    """What `call` answers, which a caller waits for. A caller that gives up leaves it to its end."""
    turn = current_turn()
    if turn is None:
        return await run_sync(call, limiter=_limiter(_asked, MAX_ASKED), abandon_on_cancel=True)
    try:
        limiters = _of_clients.get()
    except LookupError:
        _of_clients.set(limiters := WeakValueDictionary())
    own = limiters.get(turn.who)
    if own is None:
        own = limiters[turn.who] = CapacityLimiter(MAX_OF_ONE_CLIENT)
    if not own.available_tokens:
        # The threads may all wait for Kafka; other calls of this client need not wait with them.
        turn.end()
    async with own:
        return await run_sync(call, limiter=_limiter(_asked, MAX_ASKED), abandon_on_cancel=True)


async def by_itself(call: Callable[[], T]) -> T:
    """What `call` answers, which the node does by itself: looks at what was read, prunes, goes on with operations."""
    return await run_sync(call, limiter=_limiter(_by_itself, MAX_BY_ITSELF), abandon_on_cancel=True)


def waits_for_segments(route: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """A route that asks the segments: it runs `on_request`, not on the threads of all other routes."""

    @functools.wraps(route)
    async def run(*arguments: P.args, **named: P.kwargs) -> T:
        return await on_request(functools.partial(route, *arguments, **named))

    # With its annotations resolved where they were written; they are what the route takes.
    run.__signature__ = inspect.signature(route, eval_str=True)  # type: ignore[attr-defined]
    return run


def _limiter(variable: RunVar[CapacityLimiter], most: int) -> CapacityLimiter:
    """Of this event loop."""
    try:
        return variable.get()
    except LookupError:
        variable.set(CapacityLimiter(most))
        return variable.get()
