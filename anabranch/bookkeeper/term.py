"""Term of office: one orchestrator at a time for a Pulsar cluster, and predecessors are fenced.

Stage: under the commands that act. The lock is ZooKeeper's (kazoo's recipe): it is free as soon as its holder's session
ends. The new holder writes the znode `orchestrator`, and the version that results is the term: every write of an
orchestrator expects it, so one that was frozen and wakes up later writes nothing.
"""

import json
from contextlib import suppress
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

from anabranch.bookkeeper.metadata import MetadataChanged, MetadataUnreachable, PulsarMetadata, ZnodeWrite
from anabranch.bookkeeper.registry import ORCHESTRATOR


@dataclass(frozen=True)
class CurrentOrchestrator:
    """Current orchestrator."""

    holder: str
    """Host and process."""
    term: int


class SwitchTerm:
    """The right to carry out the switches of one Pulsar cluster."""

    def __init__(self, client: KazooClient, metadata: PulsarMetadata, path: str, name: str) -> None:
        """`path` is the folder of the registry; `name` is this process for people."""
        self._metadata, self._path, self._name = metadata, f"{path}/{ORCHESTRATOR}", name
        self._lock = client.Lock(f"{self._path}/lock", name)
        self._taken = 0
        self.is_after_a_crash = False
        """The one before did not leave: it may be frozen, and a deletion of its be under way. Until `settled`."""

    @property
    def expectation(self) -> ZnodeWrite:
        """Part of every write: that nobody has taken over since."""
        return ZnodeWrite(self._path, None, self._taken)

    def take(self, timeout_s: float | None) -> bool:
        """Take the term and return True; False: another kept it for `timeout_s` (None waits without end)."""
        self._metadata.ensure(self._path)
        try:
            if not self._lock.acquire(timeout=timeout_s):
                return False
        except LockTimeout:
            return False
        record = self._metadata.read(self._path)
        assert record is not None
        self.is_after_a_crash = b'"holder"' in record.content
        self._metadata.write([ZnodeWrite(self._path, json.dumps({"holder": self._name}).encode(), record.version)])
        self._taken = record.version + 1
        return True

    def settled(self) -> None:
        """Note that the deadline of every deletion has passed that the one before could have asked for."""
        self.is_after_a_crash = False

    def leave(self) -> None:
        """Let the next one in; say that nothing is under way, unless something of the one before may still be."""
        if not self.is_after_a_crash:
            with suppress(MetadataChanged, MetadataUnreachable):
                self._metadata.write([ZnodeWrite(self._path, b"{}", self._taken)])
        self._lock.release()

    def holder(self) -> CurrentOrchestrator | None:
        """Return the current holder, or None."""
        waiting = self._lock.contenders()
        record = self._metadata.read(self._path)
        return CurrentOrchestrator(waiting[0], record.version if record else 0) if waiting else None
