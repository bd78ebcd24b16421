"""Waiting for kazoo's answers without hanging on a lost connection. Stage: below the ZooKeeper store and its watches.

Without a connection, kazoo keeps a request for the next connection, however long that takes. So no request is made
then, and one that was made just as the connection was lost is not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError

_SLICE_S = 0.1


class PendingAnswers:
    """Requests that are made at once, and answered one by one."""

    def __init__(self, client: KazooClient, wait_s: float, *requests: Callable[[], Any]) -> None:
        """Make the requests; `wait_s`: until the last must be answered, seconds. Raises `ConnectionLoss`."""
        self._client = client
        if not client.connected:
            raise ConnectionLoss("no server answers now")
        self._deadline = time.monotonic() + wait_s
        self._answers = [request() for request in requests]

    def answer(self, number: int) -> Any:
        """The answer to a request. Raises what the server said, `ConnectionLoss`, or `KazooTimeoutError`."""
        one = self._answers[number]
        # The server answers in order: to be woken once, by the last, costs a tenth of being woken by each.
        last = self._answers[-1]
        while not one.ready():
            if not self._client.connected:
                raise ConnectionLoss("the connection was lost before the answer")
            if time.monotonic() > self._deadline:
                raise KazooTimeoutError("no answer in time")
            last.wait(_SLICE_S)
        return one.get()
