"""Locks by name for the threads of one process; locks between processes use filelock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary


class NamedLocks:
    """Locks by name; no state is kept for a name without holders and waiters."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of this name for the duration of the block; other names are independent."""
        with self._guard:
            if (own := self._locks.get(name)) is None:
                own = self._locks[name] = _Lock()
        with own.lock:
            yield


class _Lock:
    """Lock that can be weakly referenced."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
