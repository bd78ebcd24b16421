"""Watches of one client at its server: one per node for all holders, removed with the last of them.

ZooKeeper keeps a watch until it fires, which for a quiet node is never, and kazoo has no call to remove one. So this
module removes it, at the server (request `removeWatches`) and in kazoo's tables, when its last holder is gone. The
server answers a client in the order of its requests, so a watch that is set later stays.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct, write_string
from kazoo.protocol.states import EventType, WatchedEvent

Holder = Callable[[str], None]
"""Called with the path of a node that has changed; must be quick."""
_ANY = 3
"""Data and child watches (`WatcherType.Any` of ZooKeeper)."""


class ServerWatches:
    """Holders by watched node. Thread-safe."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._holders: dict[str, set[Holder]] = defaultdict(set)

    def hold(self, path: str, holder: Holder) -> None:
        """Notify `holder` of changes at `path`, once a request has set `fired` as its watch."""
        with self._lock:
            self._holders[path].add(holder)

    def release(self, paths: Iterable[str], holder: Holder) -> None:
        """Stop notifying `holder` of these paths; remove the watches of those without another holder."""
        with self._lock:
            for path in paths:
                if (holders := self._holders.get(path)) is None:
                    continue
                holders.discard(holder)
                if not holders:
                    del self._holders[path]
                    # Within the lock: before any request of the next holder. Without a connection there are no watches.
                    if self._client.connected:
                        self._client._call(_RemoveWatches(self._client, path), self._client.handler.async_result())

    def fired(self, event: WatchedEvent) -> None:
        """Watch function of all requests. An event without a type means a lost connection and all its watches."""
        if event.type == EventType.NONE:
            return
        with self._lock:
            holders = tuple(self._holders.get(event.path, ()))
        for holder in holders:
            holder(event.path)


class _RemoveWatches(NamedTuple):
    """The request in the form that kazoo sends."""

    client: KazooClient
    path: str
    type: int = 18

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(_ANY))

    def deserialize(self, _: Any, __: int) -> bool:
        """Clean up kazoo's tables; called by its connection once the server has removed the watches."""
        self.client._data_watchers.pop(self.path, None)
        self.client._child_watchers.pop(self.path, None)
        return True
