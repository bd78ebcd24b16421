"""The packed state of a bucket and the digests by which it is known again. Stage: between the engine and its store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from engine.autoscale.loads import LoadTable
from engine.autoscale.state import BucketState

FENCE_V1_BYTES = 32
"""Length of a fence in state of version 1."""
_LEAST_LOG_BYTES = 65_536


@dataclass(frozen=True)
class Packed:
    """The packed state of a bucket, topics and loads apart: each a base and the log of what has changed since.

    `fence` is a digest of all of it: who holds the decoded state of the same fence needs nothing else.
    """

    fence: bytes | None = None
    topics: bytes = b""
    loads: bytes = b""
    topics_log: Sequence[bytes] = ()
    loads_log: Sequence[bytes] = ()

    @classmethod
    def of(cls, state: BucketState, loads: LoadTable) -> Packed:
        """All of it anew, as two bases."""
        topics_base, loads_base = state.pack(), loads.pack()
        return cls(fence_of(Chain.of(topics_base), Chain.of(loads_base)), topics_base, loads_base)


@dataclass(frozen=True)
class Written:
    """What a batch has to store: a new base (which ends its log), or an entry of the log, or neither."""

    fence: bytes
    topics: bytes | None = None
    loads: bytes | None = None
    topics_entry: bytes | None = None
    loads_entry: bytes | None = None


@dataclass
class Chain:
    """The digests of a base and of its log, entry upon entry, and their sizes."""

    base: bytes
    log: bytes
    base_bytes: int
    log_bytes: int = 0

    @classmethod
    def of(cls, base: bytes, log: Sequence[bytes] = ()) -> Chain:
        """The chain of a stored base and its log."""
        chain = cls(_digest(base), _digest(b""), len(base))
        for entry in log:
            chain.add(entry)
        return chain

    def add(self, entry: bytes) -> None:
        """One more entry of the log."""
        self.log = _digest(self.log + entry)
        self.log_bytes += len(entry)

    def is_outgrown(self, bucket: int) -> bool:
        """Whether a new base is due; at another size for each bucket, so that they do not all come at once."""
        return self.log_bytes > _LEAST_LOG_BYTES + self.base_bytes * (8 + bucket % 16) // 16


def fence_of(topics: Chain, loads: Chain) -> bytes:
    """The digest of all of it."""
    return topics.base + topics.log + loads.base + loads.log


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
