"""Metadata store of several controllers: ZooKeeper, as in Pulsar (PIP-468), through kazoo.

Stage: a `MetadataStore`. It implements the guarantees of the interface as follows:

- The version of a node is its mzxid, the number of the transaction that wrote it last, which is never reused.
  (ZooKeeper's own data version starts at 0 again when a node is deleted and created again.)
- A multi can only compare data versions. So a commit reads first, compares the mzxid itself (`plan`), and sends the
  data versions that it saw. That leaves one gap: a node deleted and created again in between. Therefore every commit
  that creates a node also writes one of the counters under `/made`, chosen by the node's path, and every conditional
  step checks that its counter has not changed since before the read. Counters only rise, so no such node was created
  meanwhile. When the multi fails because something changed, everything is read and compared again: another client's
  commit succeeded.
- Under the given root, `/tree` holds the nodes and `/made` the counters.

Longer than other modules: reads, commits and watches compare nodes by the same versions and counters.
"""

import contextlib
import logging
import ssl
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Transaction
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Permissions, make_digest_acl

from anabranch.controller.errors import StartError
from anabranch.controller.metadata.base import (
    ABSENT,
    ROOT,
    CallbackHandle,
    Check,
    Delete,
    InvalidTreeChange,
    Op,
    Put,
    SessionLost,
    SessionState,
    Stored,
    StoreUnavailable,
    WatchCallback,
    check_ops,
    check_path,
)
from anabranch.controller.metadata.callbacks import Callbacks, SessionedStore, SessionListeners
from anabranch.controller.metadata.commit_plan import NodeAction, PlanStep, paths_to_read, plan
from anabranch.controller.metadata.commit_size import CommitLimit, CommitTooLarge
from anabranch.controller.metadata.store_paths import NODES, TOPICS
from anabranch.controller.metadata.zookeeper_watch import PendingAnswers, TreeWatch
from anabranch.controller.metadata.zookeeper_watches import ServerWatches
from runtime.zookeeper_tls import TlsHandler

log = logging.getLogger(__name__)

_COUNTERS = 256
"""Two commits collide when one creates a node whose counter the other checks: rare, and harmless."""
_MAX_READS = 500
"""Nodes read per batch."""
MAX_ACLS = 2_000
"""Maximum number of nodes whose access lists are checked when a store is opened."""
_MOVED = (BadVersionError, NoNodeError, NodeExistsError)
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_jitter": 0.4, "max_delay": 2.0}
"""Kazoo's reconnection: without end; delays in seconds, jitter as a share of them."""
_CONNECTS_PER_SESSION, _CONNECT_S = 3, 5.0
"""A server that accepts a connection and does not answer must not cost the whole session: so many attempts fit into
one, if each can have this many seconds."""


@dataclass(frozen=True)
class _Look:
    """State that a commit read before it was planned."""

    stats: dict[str, ZnodeStat]
    made: dict[str, int]
    """Counter path to its data version."""


def _repeated(address: str, session_s: float) -> str:
    """Return `address` several times: kazoo shares the session's time among the servers of its list."""
    attempts = max(1, min(_CONNECTS_PER_SESSION, int(session_s / _CONNECT_S)))
    return ",".join([address] * -(-attempts // (address.count(",") + 1)))


class ZooKeeperStore(SessionedStore):
    """One client with one session at a time; a lost one is followed by a new one."""

    def __init__(
        self,
        address: str,
        root: str = "/anabranch",
        session_s: float = 10.0,
        wait_s: float = 15.0,
        credentials: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect to `address` (`host:port,host:port`) and use the tree under `root`.

        `session_s`: the server drops the ephemerals of a client that has been silent for that long, seconds (it has its
        own limits, and the last word); `wait_s`: longest wait for a response. `credentials`: `user:password` of
        ZooKeeper's digest authentication; nodes created by this store are then restricted to that user. `tls`: context
        for TLS connections, which verifies the servers' certificates. Raises `StartError` when no server answers in
        `wait_s`.
        """
        self._address, self._wait_s = address, wait_s
        self._tree, self._made = check_path(root) + "/tree", root + "/made"
        self._limit = CommitLimit(len(self._tree.encode()))
        self._closed, self._connected = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._watches: set[TreeWatch] = set()
        self._watch_calls, self._session_calls = Callbacks("metadata-watches"), Callbacks("metadata-session")
        self._session = SessionListeners(self._session_calls, SessionState.SUSPENDED)
        secured: dict[str, Any] = {}
        if credentials is not None:
            user, _, password = credentials.partition(":")
            secured = {
                "auth_data": [("digest", credentials)],
                "default_acl": [make_digest_acl(user, password, all=True)],
            }
        handler = SequentialThreadingHandler() if tls is None else TlsHandler(tls)
        self._client = KazooClient(
            hosts=_repeated(address, session_s),
            timeout=session_s,
            handler=handler,
            connection_retry=_RECONNECT,
            **secured,
        )
        self._server_watches = ServerWatches(self._client)
        self._client.add_listener(self._on_state)
        try:
            self._client.start(wait_s)
            self._connected.wait(wait_s)
            # On a busy machine a connection may be lost again at once.
            KazooRetry(**_RECONNECT, deadline=wait_s)(self._make_roots)
            self.open_node = self._tree if credentials is None else self._find_open_node(credentials.partition(":")[0])
            """A node that users other than ours may write, which could change the leader; None: there is none."""
            if credentials is not None and self.open_node is not None:
                log.warning(
                    "%s in ZooKeeper was made without a log-in, and everybody who reaches it can change it: `anabranch "
                    "controller copy` to another root makes all of it anew, for this user alone",
                    self.open_node,
                )
        except (KazooTimeoutError, KazooException) as error:
            self.close()
            reason = handler.refused if isinstance(handler, TlsHandler) and handler.refused else _words(error)
            raise StartError(f"no ZooKeeper can be used at {address}: {reason}") from error

    def get(self, path: str) -> Stored | None:
        """See `MetadataStore`."""
        node = self._tree + check_path(path)
        try:
            ((value, stat),) = self._ask(partial(self._client.get_async, node))
        except NoNodeError:
            return None
        return Stored(value, stat.mzxid)

    def get_all(self, paths: Sequence[str]) -> list[Stored | None]:
        """See `MetadataStore`."""
        stored: list[Stored | None] = []
        nodes = [self._tree + check_path(path) for path in paths]
        for start in range(0, len(nodes), _MAX_READS):
            asked = self._asked(*(partial(self._client.get_async, node) for node in nodes[start : start + _MAX_READS]))
            for number in range(len(nodes[start : start + _MAX_READS])):
                try:
                    value, stat = self._answer(asked, number)
                except NoNodeError:
                    stored.append(None)
                else:
                    stored.append(Stored(value, stat.mzxid))
        return stored

    def children(self, path: str) -> list[str]:
        """See `MetadataStore`."""
        node = self._tree if path == ROOT else self._tree + check_path(path)
        try:
            (names,) = self._ask(partial(self._client.get_children_async, node))
        except NoNodeError:
            return []
        return sorted(names)

    def sync(self) -> None:
        """See `MetadataStore`; this client's server then has the leader's latest state."""
        self._ask(partial(self._client.sync_async, self._tree))

    def commit(self, *ops: Op) -> list[int]:
        """See `MetadataStore`."""
        check_ops(ops)
        while ops:
            look = self._look(ops)
            steps = plan(ops, {path: stat.mzxid for path, stat in look.stats.items()})
            if (version := self._send(steps, look)) is not None:
                after = {path: stat.mzxid for path, stat in look.stats.items()}
                for step in steps:
                    if step.action not in (NodeAction.KEEP, NodeAction.APPEND):
                        after[step.path] = ABSENT if step.action is NodeAction.REMOVE else version
                return [after.get(op.path, ABSENT) for op in ops]
        return []

    def create_ephemeral(self, path: str, value: bytes) -> int | None:
        """See `MetadataStore`."""
        put = Put(check_path(path), value, ABSENT)
        while True:
            try:
                ((stored, stat),) = self._ask(partial(self._client.get_async, self._tree + path))
            except NoNodeError:
                # Usually the node above exists, and nothing else needs to be read.
                version = self._send([PlanStep(NodeAction.CREATE, path, value)], _Look({}, {}), path)
                if version is None:
                    look = self._look([put])
                    if path not in look.stats:
                        steps = plan([put], {node: stat.mzxid for node, stat in look.stats.items()})
                        version = self._send(steps, look, path)
                if version is not None:
                    return version
            else:
                identity = self._client.client_id
                is_ours = identity is not None and stat.ephemeralOwner == identity[0] and stored == value
                return int(stat.mzxid) if is_ours else None

    def watch(self, path: str, callback: WatchCallback, below: bool = True) -> CallbackHandle:
        """See `MetadataStore`."""
        if path != ROOT:
            check_path(path)
        watch = TreeWatch(
            self._client, self._server_watches, self._watch_calls, self._tree, path, callback, self._wait_s, below
        )
        with self._lock:
            self._watches.add(watch)
        try:
            watch.start()
        except (KazooException, KazooTimeoutError) as error:
            self._forget(watch)
            self._fail(error)
        return CallbackHandle(lambda: self._forget(watch))

    @property
    def commit_limit(self) -> CommitLimit:
        """See `MetadataStore`."""
        return self._limit

    def close(self) -> None:
        """See `MetadataStore`."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._client.stop()
        self._client.close()
        self._session.become(SessionState.LOST)
        self._watch_calls.close()
        self._session_calls.close()

    def _look(self, ops: Sequence[Op]) -> _Look:
        """Read the state of all paths of the operations, and the counters of the conditional ones.

        Counters are requested first, so that they are not newer than the nodes.
        """
        paths = paths_to_read(ops)
        counters = sorted({self._counter(op.path) for op in ops if _expects_something(op)})
        nodes = counters + [self._tree + path for path in paths]
        znodes: list[ZnodeStat | None] = self._ask(*(partial(self._client.exists_async, node) for node in nodes))
        created = {counter: stat.version for counter, stat in zip(counters, znodes, strict=False) if stat}
        stats = {path: stat for path, stat in zip(paths, znodes[len(counters) :], strict=True) if stat}
        return _Look(stats, created)

    def _send(self, steps: list[PlanStep], look: _Look, ephemeral: str | None = None) -> int | None:
        """Send the steps; return the version written, 0 for none, None if the look is outdated."""
        multi: TransactionRequest = self._client.transaction()
        paths: list[str] = []
        for counter in sorted({self._counter(step.path) for step in steps if step.expects is not None}):
            multi.check(counter, look.made[counter])
            paths.append(counter)
        for step in steps:
            stat = look.stats.get(step.path) if step.expects not in (None, ABSENT) else None
            if self._add(multi, step, stat.version if stat else -1, step.path == ephemeral):
                paths.append(step.path)
        for counter in sorted({self._counter(step.path) for step in steps if step.action is NodeAction.CREATE}):
            multi.set_data(counter, b"")
        size = len(Transaction(multi.operations).serialize())
        if size > self.commit_limit.max_bytes:
            raise CommitTooLarge(steps[0].path, size, self.commit_limit.max_bytes)
        (results,) = self._ask(multi.commit_async)
        for path, result in zip(paths, results, strict=False):
            if isinstance(result, NotEmptyError):
                raise InvalidTreeChange(path, "it has nodes below it: delete those first")
            if isinstance(result, NoChildrenForEphemeralsError):
                raise InvalidTreeChange(path, "the node above is ephemeral and cannot have any below it")
        for result in results:
            if isinstance(result, _MOVED):
                return None
            if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
                self._fail(result)
        return next((int(result.mzxid) for result in results if isinstance(result, ZnodeStat)), 0)

    def _add(self, multi: TransactionRequest, step: PlanStep, data_version: int, ephemeral: bool) -> bool:
        """Add a step to the multi; return False if it needs no operation because the counter check covers it."""
        node = self._tree + step.path
        if step.action is NodeAction.CREATE:
            multi.create(node, step.value, ephemeral=ephemeral)
        elif step.action is NodeAction.APPEND:
            multi.create(f"{node}/n-", step.value, sequence=True)
        elif step.action is NodeAction.WRITE:
            multi.set_data(node, step.value, data_version)
        elif step.action is NodeAction.REMOVE:
            multi.delete(node, data_version)
        elif step.expects != ABSENT:
            multi.check(node, data_version)
        else:
            return False
        return True

    def _counter(self, path: str) -> str:
        return f"{self._made}/{zlib.crc32(path.encode()) % _COUNTERS}"

    def _make_roots(self) -> None:
        self._client.ensure_path(self._tree)
        if not self._client.exists(self._made):
            multi = self._client.transaction()
            multi.create(self._made)
            for number in range(_COUNTERS):
                multi.create(f"{self._made}/{number}")
            # All or nothing: nothing if another controller was faster.
            multi.commit()

    def _find_open_node(self, user: str) -> str | None:
        """Return a node above leaders' addresses that others may write, or None.

        Nodes created before log-in was required stay open to everyone: ZooKeeper's access lists are per node, not per
        tree.
        """
        nodes = [self._tree, self._made, self._tree + NODES]
        # Tenants, namespaces and topics. In a large tree the first ones suffice: all were made with the same log-in.
        parents = [self._tree + TOPICS]
        for _ in range(4):
            nodes += parents
            parents = [f"{parent}/{name}" for parent in parents for name in self._names(parent)]
            parents = parents[: max(0, MAX_ACLS - len(nodes))]
        for node, answer in [(node, self._client.get_acls_async(node)) for node in nodes]:
            with contextlib.suppress(NoNodeError):
                if any(_lets_others_write(acl, user) for acl in answer.get(timeout=self._wait_s)[0]):
                    return node
        return None

    def _names(self, node: str) -> list[str]:
        with contextlib.suppress(NoNodeError):
            return sorted(self._client.get_children(node))
        return []

    def _ask(self, *requests: Callable[[], Any]) -> list[Any]:
        """Send requests together, return responses. Raises `StoreUnavailable`, and kazoo's errors of a node."""
        asked = self._asked(*requests)
        return [self._answer(asked, number) for number in range(len(requests))]

    def _asked(self, *requests: Callable[[], Any]) -> PendingAnswers:
        if self._closed.is_set():
            raise SessionLost(f"the metadata store at {self._address} is closed")
        try:
            return PendingAnswers(self._client, self._wait_s, *requests)
        except (KazooException, KazooTimeoutError) as error:
            self._fail(error)

    def _answer(self, asked: PendingAnswers, number: int) -> Any:
        try:
            return asked.answer(number)
        except NoNodeError:
            raise
        except (KazooException, KazooTimeoutError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        words = f"ZooKeeper at {self._address}: {_words(error)}"
        if isinstance(error, SessionExpiredError) or self._closed.is_set():
            raise SessionLost(words) from error
        raise StoreUnavailable(words) from error

    def _forget(self, watch: TreeWatch) -> None:
        watch.cancel()
        with self._lock:
            self._watches.discard(watch)

    def _on_state(self, state: str) -> None:
        """Handle a change of kazoo's state; runs in its connection thread, so it must not block."""
        if self._closed.is_set():
            return
        self._session.become(_STATES[state])
        if state == KazooState.CONNECTED:
            self._connected.set()
            with self._lock:
                watches = list(self._watches)
            for watch in watches:
                watch.look_everywhere()


def _expects_something(op: Op) -> bool:
    return isinstance(op, Check) or (isinstance(op, (Put, Delete)) and op.expected_version is not None)


def _lets_others_write(acl: ACL, user: str) -> bool:
    is_ours = bool(user) and acl.id.scheme == "digest" and acl.id.id.partition(":")[0] == user
    return not is_ours and bool(acl.perms & ~Permissions.READ)


def _words(error: Exception) -> str:
    """Return an error's message, or its class name: many of kazoo's errors have no message."""
    return str(error) or type(error).__name__
