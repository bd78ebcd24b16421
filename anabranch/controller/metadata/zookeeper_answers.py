"""Wait for kazoo's responses without hanging on a lost connection.

Stage: below the ZooKeeper store and its watches. Without a connection, kazoo queues a request for the next connection,
however long that takes. So no request is made then, and one made just as the connection was lost is abandoned.
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
    """Requests sent together, with responses read one by one."""

    def __init__(self, client: KazooClient, wait_s: float, *requests: Callable[[], Any]) -> None:
        """Send the requests; `wait_s`: deadline for the last response, seconds. Raises `ConnectionLoss`."""
        self._client = client
        if not client.connected:
            raise ConnectionLoss("no server answers now")
        self._deadline = time.monotonic() + wait_s
        self._answers = [request() for request in requests]

    def answer(self, number: int) -> Any:
        """Return the response to a request.

        Raises the server's error, `ConnectionLoss`, or `KazooTimeoutError`.
        """
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
