"""Thread of a store that runs callbacks in order, one at a time.

Stage: below both stores. No lock is held during a call, so a callback may use the store.
"""

import logging
import queue
import threading
from collections.abc import Callable

from anabranch.controller.metadata.base import CallbackHandle, MetadataStore, SessionCallback, SessionState

_log = logging.getLogger(__name__)


class Callbacks:
    """The thread and its queue."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def enqueue(self, call: Callable[[], None]) -> None:
        """Queue a call; its exceptions are logged and stop nothing."""
        self._calls.put(call)

    def close(self) -> None:
        """Run the queued calls, then end the thread; waits for it unless called from it."""
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                _log.exception("a callback of the metadata store failed; it will be called again at the next change")


class SessionListeners:
    """Current state of a session, and the listeners to its changes."""

    def __init__(self, callbacks: Callbacks, state: SessionState) -> None:
        self._callbacks, self.state, self.changes = callbacks, state, 0
        self._listeners: dict[object, SessionCallback] = {}
        self._lock = threading.Lock()

    def become(self, state: SessionState) -> None:
        """Change to `state` and notify all listeners; a no-op if unchanged."""
        with self._lock:
            if state is self.state:
                return
            # Order matters: a reader that sees an unchanged count must not have seen a newer state.
            self.changes += 1
            self.state = state
            for key in self._listeners:
                self._callbacks.enqueue(lambda key=key: self._tell(key, state))  # type: ignore[misc]

    def listen(self, callback: SessionCallback) -> CallbackHandle:
        """Notify `callback` of every change from now on."""
        key = object()
        with self._lock:
            self._listeners[key] = callback
        return CallbackHandle(lambda: self._forget(key))

    def _tell(self, key: object, state: SessionState) -> None:
        with self._lock:
            listener = self._listeners.get(key)
        if listener is not None:
            listener(state)

    def _forget(self, key: object) -> None:
        with self._lock:
            self._listeners.pop(key, None)


class SessionedStore(MetadataStore):
    """The session of a store, by its listeners."""

    _session: SessionListeners

    def on_session(self, callback: SessionCallback) -> CallbackHandle:
        """See `MetadataStore`."""
        return self._session.listen(callback)

    @property
    def session(self) -> SessionState:
        """See `MetadataStore`."""
        return self._session.state

    @property
    def session_changes(self) -> int:
        """See `MetadataStore`."""
        return self._session.changes
