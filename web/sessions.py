"""Who is signed in: sessions of browsers, by a random number in a cookie; the token itself is in none.

Stage: under `web.guard`. Sessions are kept in memory: after a restart of the page people sign in again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict

from controller.access.callers import Caller

MAX_SESSIONS = 1_000
"""The oldest ends when one more begins."""


class Sessions:
    """Sessions of browsers, and the secret that their forms carry."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def begin(self, caller: Caller) -> str:
        """A new session; its number."""
        number = secrets.token_urlsafe(32)
        self._callers[number] = caller
        while len(self._callers) > MAX_SESSIONS:
            self._callers.popitem(last=False)
        return number

    def caller(self, number: str) -> Caller | None:
        """Whose session it is; None: nobody's."""
        return self._callers.get(number)

    def end(self, number: str) -> None:
        """End a session; harmless when there is none."""
        self._callers.pop(number, None)

    def proof(self, number: str) -> str:
        """What a form of that session carries, which no other page can know; of an empty number without sessions."""
        return hmac.new(self._key, number.encode(), hashlib.sha256).hexdigest()

    def is_proof(self, number: str, given: str) -> bool:
        """Whether a form carries it."""
        return hmac.compare_digest(self.proof(number).encode(), given.encode())
