"""Questions to the lake that take longer than a look into memory: a few at a time; and who asks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from anabranch.auth.callers import Access, Caller
from anabranch.safeguards.commands import whoami
from anabranch.web.guard import CALLER

READERS = 2
"""At the same time: the page is in nobody's way."""
WAIT_SECONDS = 30
MAX_POLICY = 4_000
"""Characters of a policy that is tried."""
_turns = threading.BoundedSemaphore(READERS)


class PageNotFound(Exception):
    """There is nothing of that; the message says what is there."""


@contextmanager
def turn() -> Iterator[None]:
    """One of few that read at the same time. Raises `PageNotFound` when none is free for long."""
    if not _turns.acquire(timeout=WAIT_SECONDS):
        raise PageNotFound("too many are asking at this moment: load the page again")
    try:
        yield
    finally:
        _turns.release()


def actor(request: Request) -> str:
    """Return the actor for the record: the token's name, or without tokens the page's system user."""
    access: Access = request.app.state.access
    caller: Caller = request.scope[CALLER]
    return caller.name if access.is_guarded else whoami()
