"""Address of a node, held in the metadata store by one process at a time (PIP-468 "Leader Election").

Leaders are identified by address, so two nodes with one address would each take the other's topics for its own. The
node's value describes the process that holds the address, for the error message of a second one.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from anabranch.controller.errors import StartError
from anabranch.controller.leadership.election import Election, LeaderElectionState, Leadership
from anabranch.controller.metadata.base import MetadataStore, StoreError
from anabranch.controller.metadata.store_paths import COPIER, COPYING, node_path

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0


class NodeRegistration:
    """Claim of this process to the address `url`."""

    def __init__(self, nodes: MetadataStore, url: str, session_seconds: float) -> None:
        self.url = url
        self.rival: str | None = None
        """Description of the process that took the address while this one was cut off."""
        self._nodes, self._path = nodes, node_path(url)
        about = {
            "url": url,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "sessionSeconds": session_seconds,
            # Containers can share host name and process id.
            "life": uuid.uuid4().hex,
        }
        self._value = json.dumps(about).encode()
        self._session_seconds = session_seconds
        self._election = Election(nodes, self._path, self._value, self._changed)

    def claim(self) -> None:
        """Take the address; wait for the session of a process that died with it to end.

        Raises `StartError` if its holder outlives that.
        """
        changed = threading.Event()
        watch = self._nodes.watch(self._path, lambda *_: changed.set(), below=False)
        try:
            first, end = None, float("inf")
            while self._nodes.create_ephemeral(self._path, self._value) is None:
                if (node := self._nodes.get(self._path)) is None:
                    continue
                if first is None:
                    first, seconds = node.version, self._max_wait(node.value)
                    end = time.monotonic() + seconds
                    log.warning(
                        "%s is held by %s: waiting at most %.0f s for the end of its session",
                        self.url,
                        _description(node.value),
                        seconds,
                    )
                if node.version != first or time.monotonic() > end:
                    raise StartError(
                        f"the address {self.url} is held by another controller, {_description(node.value)}: "
                        "stop that one, or give this one a controller.node_url of its own"
                    )
                changed.wait(min(_CHECK_SECONDS, max(0.0, end - time.monotonic())))
                changed.clear()
            self._refuse_copies()
        except StoreError as error:
            raise StartError(f"the address {self.url} cannot be claimed: {error}") from error
        finally:
            watch.cancel()

    def _refuse_copies(self) -> None:
        if self._nodes.get(COPIER):
            raise StartError("the metadata is being copied: start the controller when that is done")
        if self._nodes.get(COPYING):
            raise StartError(
                "a copy of metadata to this place was not finished: repeat anabranch serve controller copy"
            )

    def start(self) -> None:
        """Hold the address from now on, in every later session too. Raises `StoreUnavailable`."""
        self._election.start()

    def _changed(self, leadership: Leadership) -> None:
        if leadership.state is LeaderElectionState.FOLLOWING and leadership.leader is not None:
            self.rival = (
                f"{self.url} was taken by another controller, {_description(leadership.leader)}; stop one of the two"
            )
            log.error("%s", self.rival)
        elif leadership.state is LeaderElectionState.LEADING:
            self.rival = None

    def _max_wait(self, value: bytes) -> float:
        """Return seconds after which the holder's session has ended if the holder died just now.

        ZooKeeper raises a session to at least two ticks, 4 s by default, and ends it at a tick.
        """
        seconds = _about(value).get("sessionSeconds")
        return 1.5 * float(seconds if isinstance(seconds, (int, float)) else self._session_seconds) + 5


def _about(value: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        description = json.loads(value)
        if isinstance(description, dict):
            return description
    return {}


def _description(value: bytes) -> str:
    """Describe a holder for people."""
    about = _about(value)
    if "pid" not in about:
        return "of an older release"
    return f"process {about['pid']} on {about.get('host')}, since {about.get('startedAt')}"
