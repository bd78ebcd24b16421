"""Interface of a metadata store: a tree of small values with atomic commits, ephemerals and watches.

Stage: lowest of the controller; layouts, subscriptions, consumer sessions and leaders are stored here (PIP-468
"Metadata Store Schema" and "Election"). Both implementations give the same guarantees, checked by one test suite:

- A node has a path (`/a/b`), a value and a version. A version is a positive number that is never reused in that
  store, not even by a node that was deleted and created again, so that an old version never matches a newer node.
- A put creates the missing nodes above, with an empty value. A node with others below it cannot be deleted, and an
  ephemeral cannot have any below it: both raise `InvalidTreeChange`.
- Appended nodes have names that sort in the order of the commits.
- A watch means "look again", nothing more. See `MetadataStore.watch`.
- A read may lag behind commits of others (ZooKeeper answers from any of its servers), unless it follows `sync`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from anabranch.controller.metadata.commit_size import CommitLimit


ABSENT = -1
"""As an expected version: the node must not exist. As a result: it does not exist now."""
ROOT = "/"


@dataclass(frozen=True)
class Stored:
    """Value of a node, and the version that a conditional operation compares."""

    value: bytes
    version: int


@dataclass(frozen=True)
class Put:
    """Write a value. `expected_version`: required version, `ABSENT`: must not exist, None: unconditional."""

    path: str
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True)
class Delete:
    """Remove a node. `expected_version`: required version, None: any, but it must exist."""

    path: str
    expected_version: int | None = None


@dataclass(frozen=True)
class Check:
    """Fail the commit unless the node has this version; `ABSENT`: unless it does not exist."""

    path: str
    version: int


@dataclass(frozen=True)
class Append:
    """Create a node directly below `path`, whose name sorts after all names appended there before.

    The store chooses the name; it allows 2^31 appends and deletions below one path (ZooKeeper counts in 32 bits).
    """

    path: str
    value: bytes


Op: TypeAlias = Put | Delete | Check | Append


class ChangeKind(enum.Enum):
    """Kind of change seen by a watch: a hint and not a history, as two may be reported as one."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    """A node directly below was created or removed."""


class SessionState(enum.Enum):
    """State of the session with the server. On one node: connected until it is closed, then lost."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The server is unreachable; from now on ephemerals may vanish at any moment, unnoticed here."""
    LOST = "lost"
    """The ephemerals are gone. The next `CONNECTED` is a new session without any."""


class StoreError(Exception):
    """The store did not carry out the request."""


class VersionConflict(StoreError):
    """The node at `path` does not have the expected version; nothing was changed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not at the expected version: read it again")
        self.path = path


class InvalidTreeChange(StoreError):
    """The tree does not allow the change (see above); nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class StoreUnavailable(StoreError):
    """The store is unreachable. A write may have happened or not: read before writing again."""


class SessionLost(StoreUnavailable):
    """The session ended with its ephemerals, or the store was closed. A write may have happened or not."""


WatchCallback: TypeAlias = Callable[[str, ChangeKind], None]
SessionCallback: TypeAlias = Callable[[SessionState], None]


class CallbackHandle:
    """Handle of a registered callback, for cancelling it."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Stop the calls (a running one may still finish). Idempotent."""
        self._cancel()


class MetadataStore(ABC):
    """A thread-safe store. Every method may raise `StoreUnavailable` or its subclass `SessionLost`."""

    @abstractmethod
    def get(self, path: str) -> Stored | None:
        """Return the node at `path`, or None. Raises `ValueError` for an invalid path, like all methods."""

    @abstractmethod
    def get_all(self, paths: Sequence[str]) -> list[Stored | None]:
        """Return the nodes at `paths`, None for missing ones; each as it was at some moment of the call."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Return the sorted names (not paths) directly below `path`, none without it; the root is `/`."""

    @abstractmethod
    def sync(self) -> None:
        """Block until reads show everything that was committed before the call, by any client.

        Without it a read may be stale, but never older than what this store has shown or done before.
        """

    @abstractmethod
    def commit(self, *ops: Op) -> list[int]:
        """Apply all of `ops`, in order, or nothing; durable on return.

        Returns the version of each path afterwards, `ABSENT` where there is no node; an `Append` does not change the
        version of the node above. Raises `VersionConflict` with the first path that was not as expected,
        `InvalidTreeChange`, its subclass `CommitTooLarge`, and `ValueError` when a path is named twice.
        """

    def commit_in_parts(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Apply `ops` in order, in as many commits as needed, each conditional on `checks`.

        Raises like `commit`; earlier parts stay applied.
        """
        for part in self.commit_limit.parts(ops, checks) if self.commit_limit else [ops]:
            if part:
                self.commit(*checks, *part)

    def check_fits(self, *ops: Op) -> None:
        """Raise `CommitTooLarge` when `ops` may exceed one commit; reads nothing."""
        if self.commit_limit:
            self.commit_limit.check(ops)

    @property
    def commit_limit(self) -> CommitLimit | None:
        """Size limit of one commit; None: unlimited."""
        return None

    @abstractmethod
    def create_ephemeral(self, path: str, value: bytes) -> int | None:
        """Create a node that vanishes with this session; return its version, None if another one holds it.

        If this session already holds a node with exactly that value, its version is returned: a call that ended in
        `StoreUnavailable` may be repeated. Raises `InvalidTreeChange` when the node above is ephemeral.
        """

    @abstractmethod
    def watch(self, path: str, callback: WatchCallback, below: bool = True) -> CallbackHandle:
        """Call `callback(path, kind)` after changes at `path`, which need not exist; `below`: or below it.

        Every change made after the return is followed by a call, after which a read shows that change or a later one.
        Nothing more is guaranteed: changes may be coalesced, repeated or reordered, and a call may concern a change
        that was read long ago. So treat it as "look again". Calls come one at a time from a thread of the store; they
        must be quick, and may use the store, but not wait for another callback.
        """

    @abstractmethod
    def on_session(self, callback: SessionCallback) -> CallbackHandle:
        """Call `callback` at every change of `session` from now on, in order, under the rules of `watch`."""

    @property
    @abstractmethod
    def session(self) -> SessionState:
        """Current state of the session."""

    @property
    @abstractmethod
    def session_changes(self) -> int:
        """Number of changes of `session`: if it is the same twice, no ephemeral was lost in between.

        Updated at once, while the callbacks of `on_session` come slightly later.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session and drop its ephemerals; the store must not be used afterwards. Idempotent."""

    def values(self, path: str) -> list[tuple[str, Stored]]:
        """Return the names directly below `path` with their nodes, sorted by name."""
        names = self.children(path)
        top = "" if path == ROOT else path
        nodes = self.get_all([f"{top}/{name}" for name in names])
        return [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]

    def put(self, path: str, value: bytes, expected_version: int | None = None) -> int:
        """Commit one `Put`; return the new version."""
        return self.commit(Put(path, value, expected_version))[0]

    def delete(self, path: str, expected_version: int | None = None) -> None:
        """Commit one `Delete`."""
        self.commit(Delete(path, expected_version))


def check_ops(ops: tuple[Op, ...]) -> None:
    """Raise `ValueError` for an invalid path or one named twice."""
    seen: set[str] = set()
    for op in ops:
        if check_path(op.path) in seen:
            raise ValueError(f"{op.path} is named twice in one commit")
        seen.add(op.path)


def check_path(path: str) -> str:
    """Return a valid path: `/a/b`, absolute, without an empty, `.` or `..` name.

    Raises `ValueError` for others, and for the root, which has no value.
    """
    names = path.split("/")
    if names[0] or len(names) < 2 or any(name in ("", ".", "..") or not name.isprintable() for name in names[1:]):
        raise ValueError(f"{path!r} is not a path: it must look like /a/b")
    return path


def parent(path: str) -> str:
    """Return the path above; that of `/a` is the root."""
    return path.rpartition("/")[0] or ROOT


def ancestors(path: str) -> list[str]:
    """Return the paths above except the root, the highest first."""
    names = path.split("/")
    return ["/".join(names[:length]) for length in range(2, len(names))]
