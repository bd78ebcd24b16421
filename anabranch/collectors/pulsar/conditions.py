"""Current read failures, a sentence each: for the status; beginning and end are logged.

Stage: beside the loop, whose parts all note here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)


class Troubles:
    """By what they are about: a kind of call and what was asked."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def __contains__(self, about: tuple[str, str]) -> bool:
        return about in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known.values())

    def keep(self, concerns: Callable[[str, str], bool]) -> None:
        """Drop what is about something that is gone: `concerns` is asked of each kind and key."""
        for about in [about for about in self._known if not concerns(*about)]:
            del self._known[about]

    def note(self, about: tuple[str, str], trouble: str | None) -> None:
        """Record the current condition, None if all is well; log its beginning and its end."""
        before = self._known.get(about)
        if trouble is None:
            if self._known.pop(about, None) is not None:
                log.info("%s %s can be read again", *about)
            return
        self._known[about] = trouble
        if before is None:
            log.warning("%s", trouble)
