"""Where a metadata store is, of either kind: tests open it there, and end its session from outside."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from anabranch.controller.metadata.base import MetadataStore
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from tests.harness.zookeeper import EmbeddedZooKeeper

_roots = (f"/place-{number}" for number in itertools.count())


class Place:
    """An empty place, in a file or on a ZooKeeper."""

    def __init__(self, file: Path, zookeeper: EmbeddedZooKeeper | None) -> None:
        self._file, self.zookeeper, self.root = file, zookeeper, next(_roots)
        self._opened: list[MetadataStore] = []

    def open(self) -> MetadataStore:
        """A store at this place, closed with it. On SQLite there is one at a time.

        Its session is so long that a busy machine does not end it: who wants that uses `end_session`.
        """
        if self.zookeeper:
            store: MetadataStore = ZooKeeperStore(self.zookeeper.address, self.root, session_s=30)
        else:
            store = SqliteStore(self._file)
        self._opened.append(store)
        return store

    def end_session(self, store: MetadataStore) -> MetadataStore:
        """A store at the same place after the session of `store` has ended."""
        if isinstance(store, ZooKeeperStore):
            end_zookeeper_session(store)
            return store
        store.close()
        return self.open()

    def close(self) -> None:
        """Close all stores that were opened here."""
        for store in self._opened:
            store.close()


def end_zookeeper_session(store: ZooKeeperStore) -> None:
    """A second client takes the session over and closes it: the server has expired it, and tells the first so."""
    connection, ended = store._client._connection, threading.Event()
    reconnect = connection._connect_attempt

    def reconnect_later(*arguments: Any) -> Any:
        # Or the two would take the session from each other.
        ended.wait()
        return reconnect(*arguments)

    connection._connect_attempt = reconnect_later
    thief = KazooClient(hosts=store._address, client_id=store._client.client_id)
    try:
        thief.start(60)
        thief.stop()
        thief.close()
    finally:
        connection._connect_attempt = reconnect
        ended.set()
