"""The stored state of a bucket, part by part, and the fingerprint by which it is known again.

Stage: between the engine and its store. A part is a base and the log of what has changed since; which parts there are
is said by the families, in their order. In the store the fingerprint is called `fence`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

_MIN_LOG_BYTES = 65_536


class StateError(RuntimeError):
    """The stored state cannot be read: its version is newer than this code, or it is damaged."""


@dataclass(frozen=True)
class StoredPart:
    """A base and the entries of its log; empty where nothing was ever stored."""

    base: bytes = b""
    log: Sequence[bytes] = ()


@dataclass(frozen=True)
class Packed:
    """The stored state of a bucket.

    `fingerprint` is a digest of all of it: who holds the decoded state of the same fingerprint needs nothing else.
    """

    fingerprint: bytes | None = None
    parts: Mapping[str, StoredPart] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenPart:
    """What a batch has to store of a part: a new base (which ends its log), or else an entry of the log."""

    base: bytes | None = None
    entry: bytes | None = None


@dataclass(frozen=True)
class Written:
    """What a batch has to store; parts that have not changed are missing."""

    fingerprint: bytes
    parts: Mapping[str, WrittenPart]


class Part(Protocol):
    """A part of the decoded state, as it is packed."""

    @property
    def is_changed(self) -> bool:
        """Whether the stored form does not hold everything yet."""

    def pack(self) -> bytes:
        """All of it, as a base."""

    def pack_changes(self) -> bytes:
        """What has changed since the last call of this or of `pack`, as an entry of the log."""


@dataclass
class Chain:
    """The digests of a base and of its log, entry upon entry, and their sizes."""

    base: bytes
    log: bytes
    base_bytes: int
    log_bytes: int = 0

    @classmethod
    def of(cls, part: StoredPart) -> Chain:
        """The chain of a stored part."""
        chain = cls(_digest(part.base), _digest(b""), len(part.base))
        for entry in part.log:
            chain.add(entry)
        return chain

    def add(self, entry: bytes) -> None:
        """One more entry of the log."""
        self.log = _digest(self.log + entry)
        self.log_bytes += len(entry)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever stored."""
        return not (self.base_bytes or self.log_bytes)

    def is_outgrown(self, bucket: int) -> bool:
        """Whether a new base is due; at another size for each bucket, so that they do not all come at once."""
        return self.log_bytes > _MIN_LOG_BYTES + self.base_bytes * (8 + bucket % 16) // 16


def fingerprint_of(chains: Sequence[Chain]) -> bytes:
    """The digest of all parts, in their order."""
    return b"".join(chain.base + chain.log for chain in chains)


def fingerprint_v1(chains: Sequence[Chain]) -> bytes:
    """The same as releases had it whose parts were bases only: the next batch rewrites such state."""
    return b"".join(chain.base for chain in chains)


def pack_anew(parts: Mapping[str, Part]) -> Packed:
    """All parts as bases."""
    stored = {name: StoredPart(part.pack()) for name, part in parts.items()}
    return Packed(fingerprint_of([Chain.of(part) for part in stored.values()]), stored)


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
