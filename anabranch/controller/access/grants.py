"""End long-lived sessions when their token no longer allows them (PIP-468 "Security Considerations").

A session lives longer, so its route holds a grant: it is checked again when the file of tokens has changed, and ended
when its token was removed, has a lesser role, or is bound to other namespaces. Lives in the event loop of the app.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

from fastapi import Depends
from starlette.requests import HTTPConnection

from anabranch.auth.callers import CALLER, NEEDED, Access, Caller, Need
from anabranch.controller.limits.clients import LimitedClients
from runtime.listener.fair_queue import WorkPermit

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Interval between checks of the file of tokens, and so the longest life of a session after its token."""
REVOKED = 4401
"""WebSocket close code when a token no longer allows its session (ours, after HTTP's 401)."""
REVOKED_REASON = "the token was removed or its role was narrowed; come again with one that opens this"


class _Held(NamedTuple):
    caller: Caller
    needed: Need
    end: Callable[[], None]


class Grants:
    """All sessions of a node that were opened with a token."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._held: dict[object, _Held] = {}
        self._changes = access.changes

    @contextlib.contextmanager
    def held(self, caller: Caller, needed: Need, end: Callable[[], None]) -> Iterator[None]:
        """Within the block, call `end` once when the token of `caller` no longer grants `needed`."""
        key = object()
        self._held[key] = _Held(caller, needed, end)
        try:
            # The file may have changed since the request was let in.
            self._check(key)
            yield
        finally:
            self._held.pop(key, None)

    async def check_for_ever(self) -> None:
        """Check all sessions again whenever the file has changed."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._access.follow_file()
            if self._access.changes != self._changes:
                self._changes = self._access.changes
                for key in tuple(self._held):
                    self._check(key)

    def _check(self, key: object) -> None:
        held = self._held.get(key)
        if held is not None and not self._access.opens(held.caller, held.needed):
            del self._held[key]
            log.info("a session of %s (%s) is ended: its token does not allow it any more", *held.caller[:2])
            held.end()


class Grant:
    """Permission of one request, for a session that outlives it."""

    def __init__(self, connection: HTTPConnection) -> None:
        scope = connection.scope
        self._grants: Grants = connection.app.state.grants
        self._caller: Caller = scope[CALLER]
        self._needed: Need = scope[NEEDED]
        self._clients: LimitedClients = connection.app.state.clients
        self.client = self._clients.client(self._caller.name)

    def turn(self) -> contextlib.AbstractAsyncContextManager[WorkPermit]:
        """Return a turn for work of the session. Raises `TooMany`."""
        return self._clients.turns.turn(self._caller.name)

    def held(self, end: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Within the block, call `end` when the session must end."""
        return self._grants.held(self._caller, self._needed, end)


async def _grant(connection: HTTPConnection) -> Grant:
    return Grant(connection)


Granted = Annotated[Grant, Depends(_grant)]
"""Dependency of a route that carries a session; the route holds the grant while the session lasts."""
