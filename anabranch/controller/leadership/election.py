"""Leader election: one leader among several nodes for a path (PIP-468 "Leader Election").

The leader holds an ephemeral node with its address as the value; a candidate that cannot create that node follows its
holder, and tries again when the node is gone. A node that believes it leads must not write on that alone: it may have
been frozen and missed the end of its session. So every write of a leader includes `Check(path, leadership.version)`:
only the leader that created the node can commit it.
"""

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.controller.metadata.base import (
    CallbackHandle,
    ChangeKind,
    MetadataStore,
    SessionState,
    StoreError,
    StoreUnavailable,
)
from runtime.backoff import with_jitter

_RETRY_DELAY_S, _RETRY_JITTER_S = 1.0, 0.5
"""Delay before the next attempt after the store failed although its session is alive."""
_log = logging.getLogger(__name__)


class LeaderElectionState(enum.Enum):
    """Role of this node for a topic (Pulsar's `LeaderElectionState`)."""

    LEADING = "leading"
    FOLLOWING = "following"
    NO_LEADER = "no-leader"
    """There is no leader, or the store is unreachable and the leader unknown."""


@dataclass(frozen=True)
class Leadership:
    """A state, the leader's value (None: unknown), and the version of the leader's node if this one leads."""

    state: LeaderElectionState
    leader: bytes | None = None
    version: int | None = None

    @property
    def is_leading(self) -> bool:
        """True if this node leads."""
        return self.state is LeaderElectionState.LEADING


NO_LEADER = Leadership(LeaderElectionState.NO_LEADER)


class Election:
    """One candidate for one path. Started by `start`, ended by `close`."""

    def __init__(self, store: MetadataStore, path: str, value: bytes, on_change: Callable[[Leadership], None]) -> None:
        """`value`: unique address of this node, by which others know the leader.

        `on_change` is called with every new state, one at a time and in order, from a thread of the store or the caller
        of `start` or `close`; it must be quick.
        """
        self.path, self._store, self._value, self._on_change = path, store, value, on_change
        self._lock = threading.RLock()
        self._known = (NO_LEADER, store.session_changes)
        self._news: deque[Leadership] = deque()
        self._telling = False
        self._closed = False
        self.failure: StoreUnavailable | None = None
        """Reason why the last attempt could not determine the leader; None: it did."""
        self._retry: threading.Timer | None = None
        self._subscriptions: list[CallbackHandle] = []

    @property
    def leadership(self) -> Leadership:
        """Current leadership; may be ahead of `on_change`.

        Never LEADING once the store is unreachable or its session has changed since.
        """
        leadership, changes = self._known
        return leadership if changes == self._store.session_changes else NO_LEADER

    def start(self) -> None:
        """Stand for election. Raises `StoreUnavailable` if the store cannot be watched; then call it again."""
        try:
            self._subscriptions.append(self._store.on_session(self._session_changed))
            self._subscriptions.append(self._store.watch(self.path, self._node_changed))
        except StoreError:
            self._unsubscribe()
            raise
        self.stand()

    def resign(self, leave: Callable[[], bool]) -> bool:
        """Stop standing if `leave`, which deletes the leader's node and related ones, returns True.

        The watch on the node is suspended meanwhile, because this candidate would create it again. Returns the result
        of `leave`.
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
        """Stop standing and give up the leadership, so that another node can take it at once."""
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

    def _node_changed(self, path: str, kind: ChangeKind) -> None:
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
        """Determine the leader now; the store's callbacks do that too, slightly later."""
        with self._lock:
            if self._closed:
                return
            changes = self._store.session_changes
            try:
                outcome, self.failure = self._try(), None
            except StoreUnavailable as error:
                self.failure = error
                _log.info("the leader of %s cannot be found out now: %s", self.path, error)
                outcome = NO_LEADER
                self._retry_soon()
            # If the session changed meanwhile, this may be from the old session; a callback follows.
            self._become(outcome if changes == self._store.session_changes else NO_LEADER, changes)
        self._tell()

    def _try(self) -> Leadership:
        while True:
            if (version := self._store.create_ephemeral(self.path, self._value)) is not None:
                return Leadership(LeaderElectionState.LEADING, self._value, version)
            node = self._store.get(self.path)
            if node and node.value == self._value:
                # Created by an earlier process of this node whose session has not ended yet: it has no active leader.
                return NO_LEADER
            if node:
                return Leadership(LeaderElectionState.FOLLOWING, node.value)

    def _retry_soon(self) -> None:
        """Stand again after a delay; without a session, its return triggers that."""
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
        """Call `on_change` without a lock; a thread already doing so delivers this change too."""
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
