"""Circuit breaker for the store of segments, for background work on segments.

Stage: lives in the event loop of a node. Work without an answer reports a failure; then one small request at a time
probes the store until it answers, and all listeners are notified. So nothing else has to retry meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable

from anabranch.controller.segments.waiting import by_itself
from runtime.backoff import with_jitter

log = logging.getLogger(__name__)

DELAY_SECONDS, JITTER_SECONDS = 2.0, 1.0
"""Delay between two probes."""


class SegmentReach:
    """Circuit breaker of one node; `answers` is `SegmentStore.answers`."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self.is_away = False
        """True while the store is known to be unreachable."""
        self.on_back: list[Callable[[], None]] = []
        """Called in the event loop when the store answers again; must be quick."""
        self._answers = answers
        self._asking: asyncio.Task[None] | None = None

    def failed(self) -> None:
        """Report a request without an answer; starts to probe the store."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Stop probing."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        while not await by_itself(self._answers):
            if not self.is_away:
                self.is_away = True
                log.warning("the segments cannot be reached; what is to be done with them waits until they can")
            await asyncio.sleep(with_jitter(DELAY_SECONDS, JITTER_SECONDS))
        if self.is_away:
            self.is_away = False
            log.info("the segments can be reached again")
            for tell in self.on_back:
                tell()
