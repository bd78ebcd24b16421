"""Rate limit of calls in any 60 seconds. Pure: the monotonic clock, in seconds, is an argument.

A call occupies a slot from when it is granted until 60 seconds after it ended. It reached the server somewhere between
the two, so no window of 60 seconds, wherever it begins, contains more calls than there are slots.
"""

from collections import deque

WINDOW_SECONDS = 60.0


class CallSlots:
    """Rate limiter with `limit` slots; 0 means no limit, and nothing is counted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._granted: set[str] = set()
        self._ended: deque[float] = deque()

    def taken(self, now: float) -> int:
        """Return the number of occupied slots."""
        while self._ended and self._ended[0] + WINDOW_SECONDS <= now:
            self._ended.popleft()
        return len(self._granted) + len(self._ended)

    def is_free(self, now: float) -> bool:
        """Return whether a slot is free."""
        return not self.limit or self.taken(now) < self.limit

    def free_at(self, now: float) -> float:
        """Return when a slot is free by time alone, at most `now` + 60 as running calls have no known end."""
        over = self.taken(now) - self.limit
        if not self.limit or over < 0:
            return now
        return self._ended[over] + WINDOW_SECONDS if over < len(self._ended) else now + WINDOW_SECONDS

    def grant(self, name: str) -> None:
        """Occupy a slot for a call; once for each name."""
        if self.limit:
            self._granted.add(name)

    def end(self, name: str, called_until: float | None) -> None:
        """Record the latest instant at which a call ended; None: it was not made, and its slot is free again."""
        if name in self._granted:
            self._granted.remove(name)
            if called_until is not None:
                self.count(called_until)

    def count(self, called_until: float) -> None:
        """Count a recorded call that has ended. Never counted earlier than previous calls, to be safe."""
        if self.limit:
            self._ended.append(max(called_until, self._ended[-1]) if self._ended else called_until)
