"""Stored state of a bucket by part, and its fingerprint.

Stage: between the engine and its store. A part is a base and a log of later changes; the families define the parts
and their order. The store calls the fingerprint `fence`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

_MIN_LOG_BYTES = 65_536


class StateError(RuntimeError):
    """The stored state cannot be read: its version is newer than this code, or it is damaged."""


@dataclass(frozen=True)
class StoredPart:
    """A base and its log entries; empty if nothing was stored."""

    base: bytes = b""
    log: Sequence[bytes] = ()


@dataclass(frozen=True)
class Packed:
    """The stored state of a bucket; with an equal `fingerprint` decoded state needs nothing of it."""

    fingerprint: bytes | None = None
    parts: Mapping[str, StoredPart] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenPart:
    """Changes of a part to store: a new base (which ends its log), or else a log entry."""

    base: bytes | None = None
    entry: bytes | None = None


@dataclass(frozen=True)
class Written:
    """Changes to store; unchanged parts are missing."""

    fingerprint: bytes
    parts: Mapping[str, WrittenPart]


class Part(Protocol):
    """A part of the decoded state, as it is packed."""

    @property
    def is_changed(self) -> bool:
        """True if the stored form lacks some changes."""

    def pack(self) -> bytes:
        """Pack everything as a base."""

    def pack_changes(self) -> bytes:
        """Pack the changes since the last call of this or of `pack` as a log entry."""


@dataclass
class Chain:
    """Digests of a base and of its log, chained over the entries, and their sizes."""

    base: bytes
    log: bytes
    base_bytes: int
    log_bytes: int = 0

    @classmethod
    def of(cls, part: StoredPart) -> "Chain":
        """Return the chain of a stored part."""
        chain = cls(_digest(part.base), _digest(b""), len(part.base))
        for entry in part.log:
            chain.add(entry)
        return chain

    def add(self, entry: bytes) -> None:
        """Append a log entry."""
        self.log = _digest(self.log + entry)
        self.log_bytes += len(entry)

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever stored."""
        return not (self.base_bytes or self.log_bytes)

    def is_outgrown(self, bucket: int) -> bool:
        """Return whether a new base is due; the limit varies by bucket, so that bases are not all due at once."""
        return self.log_bytes > _MIN_LOG_BYTES + self.base_bytes * (8 + bucket % 16) // 16


def fingerprint_of(chains: Sequence[Chain]) -> bytes:
    """Return the digest of all parts, in order."""
    return b"".join(chain.base + chain.log for chain in chains)


def fingerprint_v1(chains: Sequence[Chain]) -> bytes:
    """Return the digest of releases whose parts were bases only; the next batch rewrites such state."""
    return b"".join(chain.base for chain in chains)


def pack_anew(parts: Mapping[str, Part]) -> Packed:
    """Pack all parts as bases."""
    stored = {name: StoredPart(part.pack()) for name, part in parts.items()}
    return Packed(fingerprint_of([Chain.of(part) for part in stored.values()]), stored)


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
