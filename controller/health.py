"""Whether a node is well, answered at once: for probes, when everything else is busy or stuck, and for strangers.

Stage: beside the routes, which take their turns and threads; this has a thread of its own for its one question to the
metadata store. Strangers hear yes or no; what is wrong, with its addresses, is for those with a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from controller.metadata.base import StoreError

MAX_LOOK_SECONDS = 2.0
"""The metadata store is failing when it has not answered after this time."""


class HealthReport(NamedTuple):
    """How a node is."""

    outbox: int | None
    """Commits that are not announced yet; None: not known."""
    reason: str | None
    """What is wrong; None: nothing."""

    def body(self, in_full: bool) -> dict[str, object]:
        """As JSON, for a caller with a token or for anybody."""
        status: dict[str, object] = {"status": "failing" if self.reason else "ok"}
        return {**status, "outbox": self.outbox, "reason": self.reason} if in_full else status


class Health:
    """The health of a node. Lives in the event loop of the app."""

    def __init__(self, waiting: Callable[[], int], trouble: Callable[[], str | None]) -> None:
        """`waiting` asks the store how many commits are to be announced; `trouble` says what else is known at once."""
        self._waiting, self._trouble = waiting, trouble
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="health")
        self._look: asyncio.Future[int] | None = None

    async def report(self) -> HealthReport:
        """How it is now; asks the store once for all who ask at the same time."""
        trouble = self._trouble()
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().run_in_executor(self._thread, self._waiting)
        await asyncio.wait({self._look}, timeout=MAX_LOOK_SECONDS)
        if not self._look.done():
            return HealthReport(None, f"the metadata store has not answered for {MAX_LOOK_SECONDS:g} s")
        error = self._look.exception()
        if isinstance(error, StoreError):
            return HealthReport(None, f"the metadata store cannot be used now: {error}")
        return HealthReport(self._look.result(), trouble)

    def stop(self) -> None:
        """No more questions."""
        self._thread.shutdown(wait=False, cancel_futures=True)
