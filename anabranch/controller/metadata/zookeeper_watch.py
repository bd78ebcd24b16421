"""Watch a node or subtree of ZooKeeper with one-shot watches (kazoo has no recursive ones).

Stage: under `anabranch.controller.metadata.zookeeper`. Every node of the subtree has a data and a child watch. When one
fires, the node is read again, which sets the watch again, and differences to the last look are reported. So no lasting
change is missed: changes between two looks are coalesced, and after a reconnect the whole subtree is read.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from anabranch.controller.metadata.base import ROOT, ChangeKind, WatchCallback
from anabranch.controller.metadata.callbacks import Callbacks
from anabranch.controller.metadata.zookeeper_watches import ServerWatches
from runtime.backoff import with_jitter

_RETRY_DELAY_S, _RETRY_JITTER_S = 0.2, 0.1
"""Delay before a failed look is repeated although the server is reachable."""
_SLICE_S = 0.1


class PendingAnswers:
    """Requests sent together, with responses read one by one, never hanging on a lost connection.

    Without a connection, kazoo queues a request for the next connection, however long that takes. So no request is made
    then, and one made just as the connection was lost is abandoned.
    """

    def __init__(self, client: KazooClient, wait_s: float, *requests: Callable[[], Any]) -> None:
        """Send the requests; `wait_s`: deadline for the last response, seconds. Raises `ConnectionLoss`."""
        self._client = client
        if not client.connected:
            raise ConnectionLoss("no server answers now")
        self._deadline = time.monotonic() + wait_s
        self._answers = [request() for request in requests]

    def answer(self, number: int) -> Any:
        """Return a response. Raises the server's error, `ConnectionLoss`, or `KazooTimeoutError`."""
        pending = self._answers[number]
        # The server answers in order: waking up once, for the last, costs a tenth of waking up for each.
        last = self._answers[-1]
        while not pending.ready():
            if not self._client.connected:
                raise ConnectionLoss("the connection was lost before the answer")
            if time.monotonic() > self._deadline:
                raise KazooTimeoutError("no answer in time")
            last.wait(_SLICE_S)
        return pending.get()


class TreeWatch:
    """A watched subtree and its state at the last look."""

    def __init__(
        self,
        client: KazooClient,
        watches: ServerWatches,
        callbacks: Callbacks,
        tree: str,
        top: str,
        callback: WatchCallback,
        wait_s: float,
        below: bool = True,
    ) -> None:
        """`tree`: ZooKeeper path of the store's root; `wait_s`: longest wait for one response, seconds.

        `below`: also watch the nodes below `top`.
        """
        self._below_too = below
        self._client, self._callbacks, self._tree, self._top = client, callbacks, tree, top
        self._watches = watches
        self._callback, self._wait_s = callback, wait_s
        self._cancelled = threading.Event()
        self._looking = threading.Lock()
        self._versions: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}
        self._held: set[str] = set()
        """Paths in ZooKeeper of the nodes that it has or had watches at."""
        self._due_lock = threading.Lock()
        self._due: set[str] = set()
        self._all_due = False

    def start(self) -> None:
        """Set all watches and record the current state without reporting it. Raises kazoo's errors."""
        with self._looking:
            self._look([self._top], True, [])

    def look_everywhere(self) -> None:
        """Schedule a look at the whole subtree: a new connection has no watches."""
        self._enqueue(None)

    def cancel(self) -> None:
        """Stop reporting and remove the watches; a running look does so at its end."""
        self._cancelled.set()
        self._watches.release(tuple(self._held), self._fired)

    def _fired(self, node: str) -> None:
        """Schedule a look at a node that has changed."""
        self._enqueue(node[len(self._tree) :] or ROOT)

    def _enqueue(self, path: str | None) -> None:
        with self._due_lock:
            idle = not self._due and not self._all_due
            if path is None:
                self._all_due = True
            else:
                self._due.add(path)
        if idle and not self._cancelled.is_set():
            self._callbacks.enqueue(self._look_and_tell)

    def _look_and_tell(self) -> None:
        with self._due_lock:
            paths, everywhere = sorted(self._due), self._all_due
            self._due.clear()
            self._all_due = False
        if self._cancelled.is_set():
            return
        changes: list[tuple[str, ChangeKind]] = []
        try:
            with self._looking:
                if not everywhere:
                    self._look([path for path in paths if path in self._versions or path == self._top], False, changes)
                else:
                    self._look([self._top], True, changes)
        except (KazooException, KazooTimeoutError):
            if self._client.connected and not self._cancelled.wait(with_jitter(_RETRY_DELAY_S, _RETRY_JITTER_S)):
                self.look_everywhere()
        for path, kind in changes:
            if not self._cancelled.is_set():
                self._callback(path, kind)

    def _look(self, paths: Iterable[str], deep: bool, changes: list[tuple[str, ChangeKind]]) -> None:
        """Look at `paths` and at new nodes below them, or at all nodes below if `deep`."""
        try:
            self._look_below(list(paths), deep, changes)
        finally:
            if self._cancelled.is_set():
                self._watches.release(tuple(self._held), self._fired)

    def _look_below(self, frontier: list[str], deep: bool, changes: list[tuple[str, ChangeKind]]) -> None:
        fired = self._watches.fired
        while frontier:
            nodes = [self._node(path) for path in frontier]
            for node in nodes:
                self._held.add(node)
                self._watches.hold(node, self._fired)
            data = self._ask(partial(self._client.get_async, node, fired) for node in nodes)
            children = self._ask(partial(self._client.get_children_async, node, fired) for node in nodes)
            below: list[str] = []
            for number, path in enumerate(frontier):
                try:
                    _, stat = data.answer(number)
                    names = set(children.answer(number))
                except NoNodeError:
                    self._gone(path, changes)
                    # The return of the top needs its own watch; for all others, the node above reports it.
                    if path == self._top:
                        exists = self._ask([partial(self._client.exists_async, self._node(path), fired)])
                        below += [path] if exists.answer(0) else []
                else:
                    below += self._seen(path, stat.mzxid, names, deep, changes)
            frontier = below

    def _ask(self, requests: Iterable[Callable[[], Any]]) -> PendingAnswers:
        return PendingAnswers(self._client, self._wait_s, *requests)

    def _seen(
        self, path: str, version: int, names: set[str], deep: bool, changes: list[tuple[str, ChangeKind]]
    ) -> list[str]:
        """Record an existing node; return the paths below it that must be read."""
        before, names_before = self._versions.get(path), self._names.get(path, set())
        if before is None:
            changes.append((path, ChangeKind.CREATED))
        elif before != version:
            changes.append((path, ChangeKind.CHANGED))
        if names != names_before:
            changes.append((path, ChangeKind.CHILDREN))
        self._versions[path], self._names[path] = version, names
        for name in names_before - names:
            self._gone(_below(path, name), changes)
        if not self._below_too:
            return []
        return [below for below in (_below(path, name) for name in names) if deep or below not in self._versions]

    def _gone(self, path: str, changes: list[tuple[str, ChangeKind]]) -> None:
        for name in self._names.pop(path, set()):
            self._gone(_below(path, name), changes)
        if self._versions.pop(path, None) is not None:
            changes.append((path, ChangeKind.DELETED))
        if path != self._top:
            self._held.discard(self._node(path))
            self._watches.release([self._node(path)], self._fired)

    def _node(self, path: str) -> str:
        return self._tree if path == ROOT else self._tree + path


def _below(path: str, name: str) -> str:
    return f"/{name}" if path == ROOT else f"{path}/{name}"
