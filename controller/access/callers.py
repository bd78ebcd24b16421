"""Who calls: the token of a request, compared with those of the file.

Stage: `controller.access.gate` asks `Access` who calls, before anything else is done with a request.
"""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from controller.access.scopes import EVERYWHERE, Scope, covers
from controller.access.tokens import Role, TokenEntry, TokensError, digest_of, read_tokens, suffices

log = logging.getLogger(__name__)

CALLER = "anabranch.caller"
"""Key of the ASGI scope under which the gate notes the `Caller`."""
NEEDED = "anabranch.needed"
"""Key of the ASGI scope under which a route notes what it `Need`s."""
GRACE_SECONDS: Final = 60.0
"""Time for which the tokens of a file that has become unreadable still count: an edit may take two steps."""


class Need(NamedTuple):
    """What a token must have for a request."""

    role: Role
    place: str
    """`tenant/namespace` of what is asked for."""


class Caller(NamedTuple):
    """Who sends a request: the name of the token, never the token."""

    name: str
    role: Role
    digest: bytes = b""
    """Of the token: another one may have been made under the same name."""
    scope: Scope = EVERYWHERE
    """The tenants and namespaces that the token is bound to."""


ANYBODY: Final = Caller("anybody", "admin")
"""Without tokens."""
STRANGER: Final = Caller("stranger", "read")
"""With tokens, and without one, on a path that is open."""


class Access:
    """Tells callers by their tokens: those of a file, or one token that opens everything, or nobody needs one.

    A changed file counts from the next request on. When it cannot be read any more, the log says so, and the tokens
    that it held before count for another `GRACE_SECONDS`; after that nobody is let in until the file is back.
    """

    def __init__(
        self, tokens_file: Path | None = None, token: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """With a file, only the file counts. Raises `TokensError` when it cannot be used."""
        self._file, self._clock = tokens_file, clock
        self._unreadable: tuple[float, str] | None = None
        """Since when the file cannot be read, and why."""
        self._mark: tuple[int, ...] | None = None
        self._entries: list[TokenEntry] = []
        self.changes = 0
        """How often the file was read again."""
        if tokens_file is not None:
            self._mark = _mark(tokens_file)
            self._entries = read_tokens(tokens_file)
        elif token is not None:
            self._entries = [TokenEntry("controller.token", "admin", digest_of(token.encode()))]
        self.is_guarded = tokens_file is not None or token is not None
        """Whether a token is asked for at all."""

    def caller(self, authorization: bytes) -> Caller | None:
        """Who sends this header `Authorization`; None when it names nobody."""
        if not self.is_guarded:
            return ANYBODY
        self.follow_file()
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = digest_of(token.strip())
        found = None
        # Compare with all of them, so that the time it takes tells nothing.
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        return None if found is None else Caller(*found)

    def opens(self, caller: Caller, needed: Need) -> bool:
        """Whether the token of a caller still does for what is needed, as the file was read last."""
        if not self.is_guarded:
            return True
        return any(
            entry.digest == caller.digest and suffices(entry.role, needed.role) and covers(entry.scope, needed.place)
            for entry in self._entries
        )

    def holds(self, caller: Caller) -> bool:
        """Whether the token of a caller still counts as it did, as the file was read last."""
        return not self.is_guarded or any(Caller(*entry) == caller for entry in self._entries)

    def follow_file(self) -> None:
        """Read the file again if it has changed."""
        if self._file is None:
            return
        mark = _mark(self._file)
        if mark != self._mark:
            self._mark = mark
            try:
                self._entries = read_tokens(self._file)
            except TokensError as error:
                since = self._unreadable[0] if self._unreadable else self._clock()
                self._unreadable = since, str(error)
                log.error(
                    "cannot read the tokens; those known so far count for %g s after the first failure: %s",
                    GRACE_SECONDS, error,
                )  # fmt: skip
            else:
                self._unreadable = None
                self.changes += 1
                log.info("%d tokens are known now", len(self._entries))
        if self._entries and self.failure is not None:
            self._entries = []
            self.changes += 1
            log.error("nobody is let in until the tokens can be read again: %s", self.failure)

    @property
    def failure(self) -> str | None:
        """Why nobody is let in any more; None: the tokens can be read, or were a moment ago."""
        if self._unreadable is None or self._clock() - self._unreadable[0] < GRACE_SECONDS:
            return None
        return self._unreadable[1]


def _mark(file: Path) -> tuple[int, ...] | None:
    """Changes whenever the file does; None when there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
