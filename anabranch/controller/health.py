"""Health of a node, available at once for probes even when everything else is busy or stuck.

Stage: beside the routes, which queue for turns and threads; this has its own thread for its one query to the metadata
store. Anonymous clients get yes or no; the reason, which contains addresses, is for callers with a token.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from anabranch.controller.metadata.base import StoreError

MAX_LOOK_SECONDS = 2.0
"""Time after which a metadata store that has not answered counts as failing."""


class HealthReport(NamedTuple):
    """State of a node."""

    outbox: int | None
    """Commits that are not announced yet; None: unknown."""
    reason: str | None
    """Description of the fault; None: healthy."""

    def body(self, in_full: bool) -> dict[str, object]:
        """Return the JSON body, in full for a caller with a token."""
        status: dict[str, object] = {"status": "failing" if self.reason else "ok"}
        return {**status, "outbox": self.outbox, "reason": self.reason} if in_full else status


class NodeHealth:
    """Health of a node. Lives in the event loop of the app."""

    def __init__(self, waiting: Callable[[], int], trouble: Callable[[], str | None]) -> None:
        """`waiting` returns the number of commits to announce, `trouble` a fault known without asking."""
        self._waiting, self._trouble = waiting, trouble
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="health")
        self._look: asyncio.Future[int] | None = None

    async def report(self) -> HealthReport:
        """Return the current health; concurrent callers share one query to the store."""
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
        """Stop querying the store."""
        self._thread.shutdown(wait=False, cancel_futures=True)
