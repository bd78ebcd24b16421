"""Leader election: one leader among several nodes for a path (PIP-468 "Leader Election").

Stage: above `controller.metadata`, below what acts for a topic. The leader holds an ephemeral node with its address as
the value; a candidate that cannot make that node follows its holder, and tries again when the node is gone. To know
that one leads is never enough to write: a node that was frozen may have missed the end of its session. So every write
of a leader goes with `Check(path, leadership.version)`: only the leader that made the node can commit it.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from controller.metadata.base import CallbackHandle, Kind, MetadataStore, SessionState, StoreError, StoreUnavailable
from controller.retries import with_jitter

_RETRY_DELAY_S, _RETRY_JITTER_S = 1.0, 0.5
"""Until the next attempt after the store failed although its session is alive."""
_log = logging.getLogger(__name__)


class LeaderElectionState(enum.Enum):
    """What this node is for a topic (Pulsar's `LeaderElectionState`)."""

    LEADING = "leading"
    FOLLOWING = "following"
    NO_LEADER = "no-leader"
    """Nobody leads, or the store is not heard and it cannot be known who does."""


@dataclass(frozen=True)
class Leadership:
    """A state; the value of the leader, None: nobody known; the version of the leader's node, if this one leads."""

    state: LeaderElectionState
    leader: bytes | None = None
    version: int | None = None

    @property
    def is_leading(self) -> bool:
        """Whether this node leads."""
        return self.state is LeaderElectionState.LEADING


NO_LEADER = Leadership(LeaderElectionState.NO_LEADER)


class Election:
    """One candidate for one path. Started by `start`, ended by `close`."""

    def __init__(self, store: MetadataStore, path: str, value: bytes, on_change: Callable[[Leadership], None]) -> None:
        """`value` is the address of this node, by which the others know the leader; no two nodes have the same.

        `on_change` is called with every new state, one at a time and in order, from a thread of the store or that of
        `start` and `close`; it must be short.
        """
        self.path, self._store, self._value, self._on_change = path, store, value, on_change
        self._lock = threading.RLock()
        self._known = (NO_LEADER, store.session_changes)
        self._news: deque[Leadership] = deque()
        self._telling = False
        self._closed = False
        self.failure: StoreUnavailable | None = None
        """Why it could not be found out who leads, the last time that it was tried; None: it was."""
        self._retry: threading.Timer | None = None
        self._subscriptions: list[CallbackHandle] = []

    @property
    def leadership(self) -> Leadership:
        """Who leads; may be ahead of `on_change`.

        Never LEADING once the store is not heard or its session has changed since that was found.
        """
        leadership, changes = self._known
        return leadership if changes == self._store.session_changes else NO_LEADER

    def start(self) -> None:
        """Stand for election. Raises `StoreUnavailable` when the store cannot be watched; then call it again."""
        try:
            self._subscriptions.append(self._store.on_session(self._session_changed))
            self._subscriptions.append(self._store.watch(self.path, self._node_changed))
        except StoreError:
            self._unsubscribe()
            raise
        self.stand()

    def resign(self, leave: Callable[[], bool]) -> bool:
        """Stop standing, if `leave`, which takes the leader's node away with whatever else has to go, returns True.

        Nothing is heard of the node's end meanwhile: this candidate would make it again. Returns what `leave` does.
        """
        with self._lock:
            if not leave():
                return False
            self._closed = True
            self._unsubscribe()
            self._become(NO_LEADER, self._store.session_changes)
        self._tell()
        return True

    def close(self) -> None:
        """Stop standing, and give the leadership up, for another to take at once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._unsubscribe()
            if self._retry:
                self._retry.cancel()
            leadership = self.leadership
            self._become(NO_LEADER, self._store.session_changes)
        if leadership.is_leading:
            try:
                self._store.delete(self.path, leadership.version)
            except StoreError as error:
                _log.info("the leader of %s leaves its node to the end of its session: %s", self.path, error)
        self._tell()

    def _node_changed(self, path: str, kind: Kind) -> None:
        if path == self.path:
            self.stand()

    def _session_changed(self, session: SessionState) -> None:
        if session is SessionState.CONNECTED:
            self.stand()
        else:
            with self._lock:
                self._become(NO_LEADER, self._store.session_changes)
            self._tell()

    def stand(self) -> None:
        """Find out who leads now; the store's callbacks do that too, a moment later."""
        with self._lock:
            if self._closed:
                return
            changes = self._store.session_changes
            try:
                found, self.failure = self._try(), None
            except StoreUnavailable as error:
                self.failure = error
                _log.info("the leader of %s cannot be found out now: %s", self.path, error)
                found = NO_LEADER
                self._retry_soon()
            # When the session changed meanwhile, a callback follows, and this was perhaps found in the old session.
            self._become(found if changes == self._store.session_changes else NO_LEADER, changes)
        self._tell()

    def _try(self) -> Leadership:
        while True:
            version = self._store.create_ephemeral(self.path, self._value)
            if version is not None:
                return Leadership(LeaderElectionState.LEADING, self._value, version)
            node = self._store.get(self.path)
            if node and node.value == self._value:
                # Made by an earlier process of this node, whose session has not ended yet: nobody acts for it.
                return NO_LEADER
            if node:
                return Leadership(LeaderElectionState.FOLLOWING, node.value)

    def _retry_soon(self) -> None:
        """Stand again in a while; without a session its return does that."""
        if self._store.session is SessionState.CONNECTED and self._retry is None:
            self._retry = threading.Timer(with_jitter(_RETRY_DELAY_S, _RETRY_JITTER_S), self._stand_again)
            self._retry.daemon = True
            self._retry.start()

    def _stand_again(self) -> None:
        with self._lock:
            self._retry = None
        self.stand()

    def _become(self, leadership: Leadership, changes: int) -> None:
        if leadership != self._known[0]:
            self._news.append(leadership)
        self._known = (leadership, changes)

    def _tell(self) -> None:
        """Call `on_change` without a lock; while another thread does, that one tells this news too."""
        while True:
            with self._lock:
                if self._telling or not self._news:
                    return
                self._telling = True
                leadership = self._news.popleft()
            try:
                self._on_change(leadership)
            finally:
                with self._lock:
                    self._telling = False

    def _unsubscribe(self) -> None:
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions.clear()
