"""Whether the store of segments can be reached, for those who look after segments without being asked.

Stage: lives in the event loop of a node. Who had no answer says so; from then on one small question at a time is asked
until there is an answer, and then everybody hears of it. So nobody else has to try again and again meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from controller.retries import with_jitter
from controller.segments.waiting import by_itself

log = logging.getLogger(__name__)

DELAY_SECONDS, JITTER_SECONDS = 2.0, 1.0
"""Between two questions."""


class SegmentReach:
    """One for a node; `answers` is `SegmentStore.answers`."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self.is_away = False
        """Whether the store was found to be away, and has not answered since."""
        self.on_back: list[Callable[[], None]] = []
        """Called in the event loop when the store answers again; must be short."""
        self._answers = answers
        self._asking: asyncio.Task[None] | None = None

    def failed(self) -> None:
        """Something had no answer: find out whether that holds for all."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        """Ask no more."""
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
