"""The watches of one client at its server: set once for all who look at a node, and removed with the last of them.

Stage: between kazoo and `controller.metadata.zookeeper_watch`. ZooKeeper keeps a watch until it fires, which for a
quiet node is never, and kazoo has no call to remove one. So a node's watch is removed here, at the server (its request
`removeWatches`) and in kazoo's tables, when nobody wants it any more. The server answers a client in the order of its
requests, so a watch that is set after that stays.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct, write_string
from kazoo.protocol.states import EventType, WatchedEvent

Holder = Callable[[str], None]
"""Called with the path of a node at which something has changed; must be short."""
_ANY = 3
"""Data and child watches (`WatcherType.Any` of ZooKeeper)."""


class ServerWatches:
    """Who wants to hear of which node. Any number of threads."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._holders: dict[str, set[Holder]] = defaultdict(set)

    def hold(self, path: str, holder: Holder) -> None:
        """From now on `holder` hears of `path`, whenever a request that set `fired` as its watch has done so."""
        with self._lock:
            self._holders[path].add(holder)

    def release(self, paths: Iterable[str], holder: Holder) -> None:
        """`holder` hears of these no more; those that nobody else holds are not watched any more."""
        with self._lock:
            for path in paths:
                holders = self._holders.get(path)
                if holders is None:
                    continue
                holders.discard(holder)
                if not holders:
                    del self._holders[path]
                    # Within the lock: before any request of the next holder. Without a connection nothing is set.
                    if self._client.connected:
                        self._client._call(_RemoveWatches(self._client, path), self._client.handler.async_result())

    def fired(self, event: WatchedEvent) -> None:
        """The watch of all requests. The event without a type is a lost connection, with all that was set on it."""
        if event.type == EventType.NONE:
            return
        with self._lock:
            holders = tuple(self._holders.get(event.path, ()))
        for holder in holders:
            holder(event.path)


class _RemoveWatches(NamedTuple):
    """The request, as kazoo sends requests."""

    client: KazooClient
    path: str
    type: int = 18

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(_ANY))

    def deserialize(self, _: Any, __: int) -> bool:
        """Called by kazoo's connection, in which its tables are kept, when the server has removed them."""
        self.client._data_watchers.pop(self.path, None)
        self.client._child_watchers.pop(self.path, None)
        return True
