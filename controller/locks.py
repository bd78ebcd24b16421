"""A lock for each name that is in use, for the threads of one process; processes lock files with filelock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class NamedLocks:
    """Locks by name; nothing is kept of a name that nobody holds or waits for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Nobody else in this process is in such a block of the same name; others wait, other names do not."""
        with self._guard:
            own = self._locks.get(name)
            if own is None:
                own = self._locks[name] = _Lock()
        with own.lock:
            yield


class _Lock:
    """A lock that can be referred to weakly."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
