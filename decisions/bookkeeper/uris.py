"""Metadata service URIs of BookKeeper: ensemble and root, and which two cannot both be registered.

Stage: under `registry`. Source: PIP-477 "Register": no URI twice; on one ensemble the chroots differ. The forms are
those that BookKeeper's client and Pulsar's brokers take.
"""

import re
from dataclasses import dataclass

_ZOOKEEPER = re.compile(r"(?i:zk(?:\+(?:null|hierarchical|longhierarchical|flat))?)://([^/\s]+)(/[^\s?#]*)?")
_STORE = re.compile(r"(?i:metadata-store):([^\s]+)")
_MEMBER = re.compile(r"([^\s:,;/]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_DEFAULT_PORT, _DEFAULT_ROOT = 2181, "/ledgers"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class BadUri(ValueError):
    """A text is no metadata service URI; the message says what one is."""


@dataclass(frozen=True)
class MetadataService:
    """Address of a cluster's metadata."""

    members: frozenset[str]
    """`host:port` of every member of the ensemble; of another store than ZooKeeper, its URI."""
    root: tuple[str, ...]
    """The parts of the path below which its metadata is."""


def read_uri(text: str) -> MetadataService:
    """Raises `BadUri`."""
    if store := _STORE.fullmatch(text):
        inner = store[1]
        if not inner.lower().startswith("zk:"):
            return MetadataService(frozenset({inner}), ())
        hosts, slash, path = inner[3:].removeprefix("//").partition("/")
        return MetadataService(_members(text, hosts), (*_parts(slash + path), *_parts(_DEFAULT_ROOT)))
    if (match := _ZOOKEEPER.fullmatch(text)) is None:
        raise BadUri(f"{text!r} is no metadata service URI: give one like zk+hierarchical://host:2181/ledgers")
    return MetadataService(_members(text, match[1]), _parts(match[2] or _DEFAULT_ROOT) or _parts(_DEFAULT_ROOT))


def share_metadata(service: MetadataService, other: MetadataService) -> bool:
    """Tell if two clusters share a member and one root is the other or inside it."""
    if not _hosts(service) & _hosts(other):
        return False
    shorter = min(len(service.root), len(other.root))
    return service.root[:shorter] == other.root[:shorter]


def _hosts(service: MetadataService) -> set[str]:
    """Return the members, those on this machine under one name."""
    named = (member.rpartition(":") for member in service.members)
    return {f"{'localhost' if host in _LOOPBACK else host}:{port}" for host, _, port in named}


def _members(text: str, hosts: str) -> frozenset[str]:
    members = set()
    for member in re.split(r"[;,]", hosts):
        match = _MEMBER.fullmatch(member)
        if match is None or not 0 < int(match[2] or _DEFAULT_PORT) < 65_536:
            raise BadUri(
                f"{text!r} has no host and port at {member!r}: give one like zk+hierarchical://host:2181/ledgers"
            )
        members.add(f"{match[1].lower()}:{int(match[2] or _DEFAULT_PORT)}")
    return frozenset(members)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)
