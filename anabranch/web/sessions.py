"""Sessions of signed-in browsers, by a random number in a cookie; no cookie holds the token.

Stage: under `anabranch.web.guard`. Sessions are kept in memory: after a restart of the page people sign in again.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from anabranch.auth.callers import Caller

MAX_SESSIONS = 1_000
"""The one that was used longest ago ends when one more begins."""
MAX_SESSIONS_PER_TOKEN = 20
"""The same of one token, so that nobody ends the sessions of others by signing in."""
IDLE_SECONDS = 12 * 3600.0
"""A session that was not used for so long has ended."""


class BrowserSessions:
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
        """Return the owner of a session; None if the session has ended. `is_use`: the idle time begins again."""
        session = self._sessions.get(number)
        if session is None or self._clock() - session[1] > IDLE_SECONDS:
            self.end(number)
            return None
        if is_use:
            self._sessions[number] = session[0], self._clock()
            self._sessions.move_to_end(number)
        return session[0]

    def end(self, number: str) -> None:
        """End a session; harmless when there is none."""
        self._sessions.pop(number, None)

    def proof(self, number: str) -> str:
        """Return the proof that only the session's forms carry; `number` is empty without sessions."""
        return hmac.new(self._key, number.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, number: str, presented: str) -> bool:
        """Return True if `presented` is the session's proof."""
        return hmac.compare_digest(self.proof(number).encode(), presented.encode())
