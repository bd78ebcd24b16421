"""Pulsar's and BookKeeper's metadata in ZooKeeper, written only by compare-and-set.

It has the records of schemas, cursors and topics, read with their versions and written singly or several in one
transaction, and the generators of ledger ids.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import Permissions

SCHEMAS, TOPICS = "/schemas", "/managed-ledgers"
TIMEOUT_S = 30.0
"""Of one request to ZooKeeper, which a client that has lost it would wait for without end."""
_AT_ONCE = 128
_CHANGED = (BadVersionError, NoNodeError, NodeExistsError)
_UNDONE = (RolledBackError, RuntimeInconsistency)
"""Of the other writes of a transaction that failed."""
_SCHEMA_DEPTH, _DOMAIN_DEPTH, _DOMAIN = 3, 3, "persistent"


class MetadataChanged(RuntimeError):
    """Something is not as it was when it was read; nothing has been written."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class MetadataRefused(RuntimeError):
    """ZooKeeper refuses this whatever the versions, such as by an access list; nothing has been written."""


class MetadataUnreachable(RuntimeError):
    """ZooKeeper did not answer: nobody knows whether what was asked has been done. Read again."""


@dataclass(frozen=True)
class ZnodeRecord:
    """A znode as it was read."""

    path: str
    version: int
    content: bytes


@dataclass(frozen=True)
class ZnodeWrite:
    """One write of a transaction; what it expects is part of it."""

    path: str
    content: bytes | None
    """None: only the expectation is checked."""
    version: int | None
    """That it must have; None: it must not be there, and is made."""
    delete: bool = False
    """It is removed."""


class PulsarMetadata:
    """The metadata of one Pulsar, over a client that is connected. Any thread may call."""

    def __init__(self, client: KazooClient, timeout_s: float = TIMEOUT_S) -> None:
        self._client, self._timeout_s = client, timeout_s

    def read(self, path: str) -> ZnodeRecord | None:
        """A znode, or None."""
        return next(self._records([path]))

    def children(self, path: str) -> list[str]:
        """Names of the znodes below one, sorted; none when it is not there."""
        return sorted(child.rpartition("/")[2] for child in self._children(iter([path])))

    def is_open(self, path: str) -> bool:
        """Tell if everybody may write a znode, or make some below it."""
        with suppress(NoNodeError):
            acls, _ = self._reached(self._client.get_acls_async(path))
            return any(acl.id.scheme == "world" and acl.perms & ~Permissions.READ for acl in acls)
        return False

    def ensure(self, path: str) -> None:
        """Create a znode and its parents where they are missing."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            with suppress(NodeExistsError):
                self._reached(self._client.create_async("/" + "/".join(parts[:depth])))

    def schemas(self) -> Iterator[ZnodeRecord]:
        """Return the locators of all schemas, for `read_locator`; those of V1 namespaces are one level deeper."""
        for record in self._records(self._paths(SCHEMAS, _SCHEMA_DEPTH)):
            if record is not None and record.content:
                yield record
            elif record is not None:
                deeper = self._records(self._children(iter([record.path])))
                yield from (below for below in deeper if below is not None and below.content)

    def topics(self) -> Iterator[ZnodeRecord]:
        """Return the records of all topics with their data ledgers, for `read_data_ledgers`."""
        return (record for record in self._records(self._topic_paths()) if record and record.content)

    def cursors(self) -> Iterator[ZnodeRecord]:
        """Return the records of all subscriptions, for `read_cursor`."""
        return (record for record in self._records(self._children(self._topic_paths())) if record and record.content)

    def _topic_paths(self) -> Iterator[str]:
        """Return the paths of all topics.

        A V1 namespace called `persistent` looks like the folder of a V2 namespace, and its own folder like a topic of
        the same name. A topic has a record; the folder is empty.
        """
        for path in self._children(self._domains()):
            if path.endswith(f"/{_DOMAIN}/{_DOMAIN}") and path.count("/") == _DOMAIN_DEPTH + 2 and self._is_empty(path):
                yield from self._children(iter([path]))
            else:
                yield path

    def _is_empty(self, path: str) -> bool:
        record = self.read(path)
        return record is not None and not record.content

    def _domains(self) -> Iterator[str]:
        """Return the folders of topics: /T/N/persistent, and of V1 namespaces /PROPERTY/CLUSTER/N/persistent."""
        for path in self._paths(TOPICS, _DOMAIN_DEPTH):
            if path.rpartition("/")[2] == _DOMAIN:
                yield path
            else:
                yield from (child for child in self._children(iter([path])) if child.rpartition("/")[2] == _DOMAIN)

    def write(self, writes: Sequence[ZnodeWrite]) -> None:
        """All in one transaction, or none: raises `MetadataChanged`, `MetadataRefused`, `MetadataUnreachable`."""
        transaction = self._client.transaction()
        for change in writes:
            if change.delete:
                transaction.delete(change.path, change.version or 0)
            elif change.version is None:
                transaction.create(change.path, change.content or b"")
            elif change.content is None:
                transaction.check(change.path, change.version)
            else:
                transaction.set_data(change.path, change.content, change.version)
        for change, result in zip(writes, self._reached(transaction.commit_async()), strict=True):
            if isinstance(result, _CHANGED):
                raise MetadataChanged(change.path, type(result).__name__)
            if isinstance(result, Exception) and not isinstance(result, _UNDONE):
                raise MetadataRefused(f"{change.path}: {type(result).__name__}")

    def _paths(self, root: str, depth: int) -> Iterator[str]:
        """All paths so many levels below `root`; a few children are asked for at a time."""
        if depth == 0:
            yield root
            return
        level = iter([root])
        for _ in range(depth):
            level = self._children(level)
        yield from level

    def _children(self, parents: Iterator[str]) -> Iterator[str]:
        for parent, children in self._asked(parents, self._client.get_children_async):
            for child in sorted(children or ()):
                yield f"{parent}/{child}"

    def _records(self, paths: Iterable[str]) -> Iterator[ZnodeRecord | None]:
        for path, node in self._asked(iter(paths), self._client.get_async):
            yield ZnodeRecord(path, node[1].version, node[0]) if node else None

    def _asked(self, paths: Iterator[str], ask: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        """Yield each path, in order, with its result, or None without a node; many requests at a time."""
        while some := list(islice(paths, _AT_ONCE)):
            for path, answer in zip(some, [ask(path) for path in some], strict=True):
                try:
                    yield path, self._reached(answer)
                except NoNodeError:
                    yield path, None

    def _reached(self, asked: Any) -> Any:
        return _await_answer(asked, self._timeout_s)


@dataclass(frozen=True)
class IdGenerators:
    """The ids that a BookKeeper cluster gives next."""

    short: int
    """31 bits; used until there is a long generator."""
    long: int | None
    """None: there is none yet."""
    instance: str
    """INSTANCEID: given when the cluster was formatted, the same under every name and address."""

    @property
    def next(self) -> int:
        """Return the next id that a client is given."""
        return self.short if self.long is None else self.long


class LedgerIds:
    """The generators of ledger ids of one BookKeeper cluster, below the root of its metadata."""

    def __init__(self, client: KazooClient, root: str, timeout_s: float = TIMEOUT_S) -> None:
        """`root` is the path of the metadata service URI of the cluster."""
        self._client, self._root, self._timeout_s = client, root, timeout_s

    def read(self) -> IdGenerators:
        """Return both generators as they are now. Raises `MetadataUnreachable`, `MetadataRefused`."""
        instance = self.instance()
        long, root = f"{self._root}/idgen-long", f"{self._root}/idgen"
        try:
            high = max((int(name[4:]) for name in self._reached(self._client.get_children_async(long))), default=1)
        except NoNodeError:
            return IdGenerators(self._given(root), None, instance)
        return IdGenerators(self._given(root), high << 32 | self._given(f"{long}/HOB-{high:010d}"), instance)

    def instance(self) -> str:
        """Return the cluster's INSTANCEID. Raises `MetadataUnreachable`, or `MetadataRefused` without one."""
        path = f"{self._root}/INSTANCEID"
        try:
            content, _ = self._reached(self._client.get_async(path))
        except NoNodeError:
            raise MetadataRefused(f"there is no {path}: no BookKeeper cluster has its metadata there") from None
        return str(content.decode("utf-8", "replace").strip())

    def advance(self, beyond: int) -> None:
        """Make the next id larger than `beyond`, by the long generator.

        A client that has been given a short id before there was a long generator keeps to short ids until it ends:
        brokers that have written to this cluster must be restarted after the first call.
        """
        if self.read().next > beyond:
            return
        for path in (f"{self._root}/idgen-long", f"{self._root}/idgen-long/HOB-{(beyond >> 32) + 1:010d}"):
            with suppress(NodeExistsError):
                self._reached(self._client.create_async(path))

    def _given(self, path: str) -> int:
        """Return the number of sequential children ever made; making and removing one count as two changes."""
        stat = self._reached(self._client.exists_async(path))
        return (stat.cversion + stat.numChildren) // 2 if stat else 0

    def _reached(self, asked: Any) -> Any:
        return _await_answer(asked, self._timeout_s)


def _await_answer(asked: Any, timeout_s: float) -> Any:
    try:
        return asked.get(timeout=timeout_s)
    except (NoNodeError, NodeExistsError):
        raise
    except NoAuthError as error:
        raise MetadataRefused("the access list of a znode refuses this client") from error
    except (KazooException, KazooTimeoutError) as error:
        raise MetadataUnreachable(f"ZooKeeper did not answer: {type(error).__name__}") from error
