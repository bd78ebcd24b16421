"""Sessions of browsers that are signed in, by a random number in a cookie; the token itself is in none.

Stage: under `web.guard`. Sessions are kept in memory: after a restart of the page people sign in again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from controller.access.callers import Caller

MAX_SESSIONS = 1_000
"""The one that was used longest ago ends when one more begins."""
MAX_SESSIONS_PER_TOKEN = 20
"""The same of one token, so that nobody ends the sessions of others by signing in."""
IDLE_SECONDS = 12 * 3600.0
"""A session that was not used for so long has ended."""


class Sessions:
    """Sessions of browsers, and the secret that their forms carry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        """With the instant of the last use of each; the one used longest ago first."""
        self._key = secrets.token_bytes(32)

    def begin(self, caller: Caller) -> str:
        """Begin a session and return its number."""
        same = [number for number, (other, _) in self._sessions.items() if other.digest == caller.digest]
        for number in same[: max(0, len(same) + 1 - MAX_SESSIONS_PER_TOKEN)]:
            del self._sessions[number]
        number = secrets.token_urlsafe(32)
        self._sessions[number] = caller, self._clock()
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return number

    def caller(self, number: str, is_use: bool = True) -> Caller | None:
        """Return the owner of a session; None: there is no such session any more. `is_use`: it goes on from now."""
        found = self._sessions.get(number)
        if found is None or self._clock() - found[1] > IDLE_SECONDS:
            self.end(number)
            return None
        if is_use:
            self._sessions[number] = found[0], self._clock()
            self._sessions.move_to_end(number)
        return found[0]

    def end(self, number: str) -> None:
        """End a session; harmless when there is none."""
        self._sessions.pop(number, None)

    def proof(self, number: str) -> str:
        """What a form of that session carries, which no other page can know; of an empty number without sessions."""
        return hmac.new(self._key, number.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, number: str, given: str) -> bool:
        """Whether a form carries it."""
        return hmac.compare_digest(self.proof(number).encode(), given.encode())
