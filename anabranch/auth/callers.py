"""Identify the caller of a request by comparing its token with those of the file.

Stage: over `tokens`; the controller (`access.gate`) and the page (`guard`) ask it for every request.
"""

import hmac
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from anabranch.auth.scopes import EVERYWHERE, Scope, covers_resource
from anabranch.auth.tokens import Role, TokenEntry, TokensError, digest_of, read_tokens, role_suffices

log = logging.getLogger(__name__)

CALLER = "anabranch.caller"
"""Key of the ASGI scope under which the gate stores the `Caller`."""
NEEDED = "anabranch.needed"
"""Key of the ASGI scope under which a route stores its `Need`."""
GRACE_SECONDS: Final = 60.0
"""Time for which known tokens stay valid after the file became unreadable, as during an edit."""


class Need(NamedTuple):
    """Permission that a request requires of its token."""

    role: Role
    place: str
    """`tenant/namespace` of the requested resource."""


class Caller(NamedTuple):
    """Sender of a request: the name of the token, never the token."""

    name: str
    role: Role
    digest: bytes = b""
    """Digest of the token: another token may have been made under the same name."""
    scope: Scope = EVERYWHERE
    """Tenants and namespaces to which the token is bound."""


ANYBODY: Final = Caller("anybody", "admin")
"""Caller when no tokens are configured."""
STRANGER: Final = Caller("stranger", "read")
"""Caller of an open path without a valid token, when tokens are configured."""


class Access:
    """Identifies callers by token: those of a file, or one token with all rights, or none required.

    A changed file takes effect with the next request. While it cannot be read, the log says so, and the tokens known
    before stay valid for `GRACE_SECONDS`; after that nobody is admitted until the file is readable again.
    """

    def __init__(
        self, tokens_file: Path | None = None, token: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the tokens; a file takes precedence over `token`. Raises `TokensError` when it cannot be used."""
        self._file, self._clock = tokens_file, clock
        self._unreadable: tuple[float, str] | None = None
        """Time since which the file cannot be read, and the reason."""
        self._mark: tuple[int, ...] | None = None
        self._entries: list[TokenEntry] = []
        self.changes = 0
        """Number of times the known tokens changed."""
        if tokens_file is not None:
            self._mark = _file_mark(tokens_file)
            self._entries = read_tokens(tokens_file)
        elif token is not None:
            self._entries = [TokenEntry("controller.token", "admin", digest_of(token.encode()))]
        self.is_guarded = tokens_file is not None or token is not None
        """True if tokens are required."""

    def caller(self, authorization: bytes) -> Caller | None:
        """Return the sender of this header `Authorization`; None if the token is missing or unknown."""
        if not self.is_guarded:
            return ANYBODY
        self.follow_file()
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = digest_of(token.strip())
        match = None
        # Compare with all of them, so that the time taken reveals nothing.
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                match = entry
        return None if match is None else Caller(*match)

    def opens(self, caller: Caller, needed: Need) -> bool:
        """Return whether the caller's token still grants what is needed, by the file as last read."""
        if not self.is_guarded:
            return True
        return any(
            entry.digest == caller.digest
            and role_suffices(entry.role, needed.role)
            and covers_resource(entry.scope, needed.place)
            for entry in self._entries
        )

    def holds(self, caller: Caller) -> bool:
        """Return whether the caller's token is still valid and unchanged, by the file as last read."""
        return not self.is_guarded or any(Caller(*entry) == caller for entry in self._entries)

    def follow_file(self) -> None:
        """Read the file again if it has changed."""
        if self._file is None:
            return
        mark = _file_mark(self._file)
        if mark != self._mark:
            self._mark = mark
            try:
                self._entries = read_tokens(self._file)
            except TokensError as error:
                since = self._unreadable[0] if self._unreadable else self._clock()
                self._unreadable = since, str(error)
                log.error(
                    "cannot read the tokens; those known so far count for %g s after the first failure: %s",
                    GRACE_SECONDS,
                    error,
                )
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
        """Reason why nobody is admitted; None while the tokens are readable or the grace period lasts."""
        if self._unreadable is None or self._clock() - self._unreadable[0] < GRACE_SECONDS:
            return None
        return self._unreadable[1]


def _file_mark(file: Path) -> tuple[int, ...] | None:
    """Return a value that changes whenever the file does; None if it does not exist."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
