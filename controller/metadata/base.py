"""What a metadata store promises: a tree of small values, atomic conditional commits, ephemerals and watches.

Stage: lowest of the controller; layouts, subscriptions, consumer sessions and leaders are kept here (PIP-468 "Metadata
Store Schema" and "Election"). Both stores keep the same promises, and one suite of tests holds them to it:

- A node has a path (`/a/b`), a value and a version. A version is a positive number that is never used again in that
  store, not even by a node that was deleted and made again, so that an old version can never fit a newer node.
- A put makes the missing nodes above, with an empty value. A node that has others below it cannot be deleted, and an
  ephemeral cannot have any below it: both raise `InvalidTreeChange`.
- What is appended below a path has names that sort in the order of the commits.
- A watch says "look again", nothing more. See `MetadataStore.watch`.
- A read may be behind what others have committed (ZooKeeper answers from any of its servers), unless it follows `sync`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from controller.metadata.path_syntax import ROOT, check_path

if TYPE_CHECKING:
    from controller.metadata.commit_size import CommitLimit

ABSENT = -1
"""As an expected version: there must be no such node. As an answer: there is none now."""


@dataclass(frozen=True)
class Stored:
    """The value of a node, and the version that a conditional operation compares."""

    value: bytes
    version: int


@dataclass(frozen=True)
class Put:
    """Write a value. `expected_version`: the one it must have, `ABSENT`: it must not exist, None: whatever is there."""

    path: str
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True)
class Delete:
    """Remove a node. `expected_version`: the version it must have, None: any, but it must exist."""

    path: str
    expected_version: int | None = None


@dataclass(frozen=True)
class Check:
    """Change nothing, but let the commit fail unless the node has this version, or is not there if it is `ABSENT`."""

    path: str
    version: int


@dataclass(frozen=True)
class Append:
    """Make a node directly below `path`, whose name sorts after all that were appended there before.

    Its name is the store's; it serves 2^31 appends and deletions below one path (ZooKeeper counts in 32 bits).
    """

    path: str
    value: bytes


Op: TypeAlias = Put | Delete | Check | Append


class Kind(enum.Enum):
    """What a watch noticed. Two changes may be reported as one, so this is a hint and not a history."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    """A node directly below was made or removed."""


class SessionState(enum.Enum):
    """How the store stands with its server. On one node: connected until it is closed, then lost."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The server is not heard; ephemerals may be gone at any moment from now on, and nobody here would know."""
    LOST = "lost"
    """The ephemerals are gone. The next `CONNECTED` is a new session without any."""


class StoreError(Exception):
    """The store did not do what was asked for."""


class VersionConflict(StoreError):
    """The node at `path` does not have the expected version; nothing was changed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not at the expected version: read it again")
        self.path = path


class InvalidTreeChange(StoreError):
    """The tree does not allow it (see above); nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class StoreUnavailable(StoreError):
    """The store cannot be reached. A write may have happened or not: read before writing again."""


class SessionLost(StoreUnavailable):
    """The session ended, and its ephemerals with it; or the store was closed. A write may have happened or not."""


WatchCallback: TypeAlias = Callable[[str, Kind], None]
SessionCallback: TypeAlias = Callable[[SessionState], None]


class CallbackHandle:
    """A callback that is called until it is cancelled."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Stop calling it (a call that is under way may still end). More than once is fine."""
        self._cancel()


class MetadataStore(ABC):
    """A store, used by any number of threads. Every method may raise `StoreUnavailable` or its `SessionLost`."""

    @abstractmethod
    def get(self, path: str) -> Stored | None:
        """The node at `path`, or None. Raises `ValueError` for a wrong path, as all methods do."""

    @abstractmethod
    def get_all(self, paths: Sequence[str]) -> list[Stored | None]:
        """The nodes at `paths`, None where there is none; each as it was at some moment of the call."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """The names (not paths) directly below `path`, sorted; none when it is not there. The root is `/`."""

    @abstractmethod
    def sync(self) -> None:
        """Returns when reads of this store show all that was committed before the call, by whomever.

        Without it a read may show what was there a moment ago, never less than this store has shown or done before.
        """

    @abstractmethod
    def commit(self, *ops: Op) -> list[int]:
        """Do all of `ops`, in their order, or nothing; durable on return.

        Answers the version of each path afterwards, `ABSENT` where there is no node; that an `Append` made a node below
        does not change it. Raises `VersionConflict` with the first path that was not as expected, `InvalidTreeChange`,
        its `CommitTooLarge`, and `ValueError` when a path is named twice.
        """

    def commit_in_parts(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Do `ops` in their order, in as many commits as they need, each of them only while `checks` hold.

        Raises as `commit`; what was done until then stays.
        """
        for part in self.commit_limit.parts(ops, checks) if self.commit_limit else [ops]:
            if part:
                self.commit(*checks, *part)

    def check_fits(self, *ops: Op) -> None:
        """Raises `CommitTooLarge` when `ops` may be more than one commit holds; looks at nothing."""
        if self.commit_limit:
            self.commit_limit.check(ops)

    @property
    def commit_limit(self) -> CommitLimit | None:
        """What one commit holds; None: whatever is asked for."""
        return None

    @abstractmethod
    def create_ephemeral(self, path: str, value: bytes) -> int | None:
        """Make a node that vanishes with this store's session; its version when this session holds it, else None.

        When this session holds a node of that very value already, that is the answer: a call that ended in
        `StoreUnavailable` may be repeated. Raises `InvalidTreeChange` when the node above is ephemeral.
        """

    @abstractmethod
    def watch(self, path: str, callback: WatchCallback, below: bool = True) -> CallbackHandle:
        """Call `callback(path, kind)` after changes at `path`, which need not exist, and if `below` anywhere below it.

        Every change made after the return is followed by a call, after which a read shows that change or a later one.
        Beyond that nothing is promised: changes may be coalesced into one call, reported twice, or in another order,
        and a call may come for what a reader saw long ago. So: take it as "look again". Calls come one at a time from
        a thread of the store; they must be short, and may use the store, but not wait for another callback.
        """

    @abstractmethod
    def on_session(self, callback: SessionCallback) -> CallbackHandle:
        """Call `callback` at every change of `session` from now on, in order, as `watch` calls."""

    @property
    @abstractmethod
    def session(self) -> SessionState:
        """How the store stands with its server now."""

    @property
    @abstractmethod
    def session_changes(self) -> int:
        """How often `session` has changed: the same number twice means that no ephemeral was lost in between.

        Known at once, while the callbacks of `on_session` come a moment later.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session, dropping its ephemerals; the store is not used afterwards. More than once is fine."""

    def values(self, path: str) -> list[tuple[str, Stored]]:
        """The names directly below `path` with their nodes, sorted by name."""
        names = self.children(path)
        top = "" if path == ROOT else path
        found = self.get_all([f"{top}/{name}" for name in names])
        return [(name, node) for name, node in zip(names, found, strict=True) if node is not None]

    def put(self, path: str, value: bytes, expected_version: int | None = None) -> int:
        """One `Put`; the new version."""
        return self.commit(Put(path, value, expected_version))[0]

    def delete(self, path: str, expected_version: int | None = None) -> None:
        """One `Delete`."""
        self.commit(Delete(path, expected_version))


def check_ops(ops: tuple[Op, ...]) -> None:
    """Raises `ValueError` when a path is none or is named twice: the second would have no version to expect."""
    seen: set[str] = set()
    for op in ops:
        if check_path(op.path) in seen:
            raise ValueError(f"{op.path} is named twice in one commit")
        seen.add(op.path)
