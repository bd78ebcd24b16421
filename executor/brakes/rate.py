"""Pure: at most so many calls in any 60 seconds. The clock, in seconds and never set back, is an argument.

A call has its place from when it is granted until 60 seconds after it ended. It reached the server somewhere between
the two: so no window of 60 seconds, wherever it begins, has more calls in it than there are places.
"""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0


class Places:
    """`limit` places; 0: there is no limit, and nothing is kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._granted: set[str] = set()
        self._ended: deque[float] = deque()

    def taken(self, now: float) -> int:
        """Places that are taken."""
        while self._ended and self._ended[0] + WINDOW_SECONDS <= now:
            self._ended.popleft()
        return len(self._granted) + len(self._ended)

    def is_free(self, now: float) -> bool:
        """Whether there is a place."""
        return not self.limit or self.taken(now) < self.limit

    def free_at(self, now: float) -> float:
        """When there is a place by time alone, unless more calls take it; `now` + 60 at the latest that can be told."""
        over = self.taken(now) - self.limit
        if not self.limit or over < 0:
            return now
        return self._ended[over] + WINDOW_SECONDS if over < len(self._ended) else now + WINDOW_SECONDS

    def grant(self, name: str) -> None:
        """A place for a call; once for each name."""
        if self.limit:
            self._granted.add(name)

    def end(self, name: str, called_until: float | None) -> None:
        """The call has ended at the latest at an instant; None: it was not made, and its place is free again."""
        if name in self._granted:
            self._granted.remove(name)
            if called_until is not None:
                self.count(called_until)

    def count(self, called_until: float) -> None:
        """A call that ended, as the record has it; not before those that were counted already, to be careful."""
        if self.limit:
            self._ended.append(max(called_until, self._ended[-1]) if self._ended else called_until)
