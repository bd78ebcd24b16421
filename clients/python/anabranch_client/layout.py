"""Layout of a scalable topic: segments, their hash ranges and lineage. Immutable."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from struct import unpack_from
from typing import Any

from anabranch_client.errors import IncompatibleController
from anabranch_client.names import PARTITION, full_name, kafka_partition, segment_kafka_topic

try:
    import mmh3
except ImportError:
    mmh3 = None  # type: ignore[assignment]

HASH_SPACE = 0x10000
"""Number of hashes: `0x0000..0xFFFF`."""
MAX_CACHED_HASHES, MAX_CACHED_KEY_BYTES = 65_536, 128


@dataclass(frozen=True)
class LayoutSegment:
    """Segment of the hashes `start..end`, both inclusive."""

    id: int
    start: int
    end: int
    is_active: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    name: str
    """Its name in Kafka: that of its consumer groups and, unless it was adopted, of its topic."""
    kafka_topic: str
    """Kafka topic that holds its messages."""
    partition: int = PARTITION

    def covers(self, hash: int) -> bool:
        """Return whether keys of this hash belong to the segment."""
        return self.start <= hash <= self.end


@dataclass(frozen=True)
class Layout:
    """All segments of a topic at an epoch."""

    topic: str
    epoch: int
    created_at_ms: int | None
    """Incarnation of the topic: greater after it was deleted and created again."""
    segments: Mapping[int, LayoutSegment]
    leader_url: str = ""
    """Address of the controller where consumers register; empty if unknown."""
    has_transactions: bool = False
    """True if its segments may be written by transactional producers."""

    @classmethod
    def from_record(cls, topic: str, record: Any, leader_url: str = "") -> "Layout":
        """Read the layout record that the controller serves. Raises `IncompatibleController`."""
        topic = full_name(topic)
        try:
            created_at_ms = record.get("createdAtMs")
            segments = {int(id): _read_segment(topic, info, created_at_ms) for id, info in record["segments"].items()}
            has_transactions = (record.get("properties") or {}).get("transactions") == "true"
            layout = cls(topic, int(record["epoch"]), created_at_ms, segments, leader_url, has_transactions)
            layout._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise IncompatibleController(
                f"the controller's layout of {topic} cannot be read ({error!r}): use a client of its version"
            ) from error
        return layout

    @classmethod
    def from_update(cls, topic: str, update: Any) -> "Layout":
        """Read a message of a watch session. Raises `IncompatibleController`."""
        if not isinstance(update, dict) or "layout" not in update:
            raise IncompatibleController(
                f"the controller's message about {topic} has no layout: use a client of its version"
            )
        return cls.from_record(topic, update["layout"], str(update.get("controllerBrokerUrl") or ""))

    @cached_property
    def active(self) -> tuple[LayoutSegment, ...]:
        """Active segments in the order of their ranges."""
        return tuple(sorted((s for s in self.segments.values() if s.is_active), key=lambda s: s.start))

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(segment.start for segment in self.active)

    def find(self, hash: int) -> LayoutSegment:
        """Return the active segment of a hash."""
        return self.active[bisect_right(self._starts, hash) - 1]

    def ancestors(self, segment_id: int) -> frozenset[int]:
        """Return the ids of all ancestors that are still in the layout."""
        return self._reach(segment_id, lambda segment: segment.parents)

    def descendants(self, segment_id: int) -> frozenset[int]:
        """Return the ids of all descendants."""
        return self._reach(segment_id, lambda segment: segment.children)

    def is_active(self, segment: LayoutSegment) -> bool:
        """Return whether a segment, perhaps of another layout or incarnation, takes messages now."""
        current = self.segments.get(segment.id)
        return current is not None and current.is_active and current.kafka_topic == segment.kafka_topic

    def replaces(self, other: "Layout | None") -> bool:
        """Return whether this is newer than `other`: a later incarnation, or a later epoch of the same one."""
        if other is None:
            return True
        return (self.created_at_ms or 0, self.epoch) > (other.created_at_ms or 0, other.epoch)

    def _reach(self, segment_id: int, next_of: Any) -> frozenset[int]:
        reached: set[int] = set()
        waiting: list[int] = list(next_of(self.segments[segment_id]))
        while waiting:
            id = waiting.pop()
            if id not in reached and id in self.segments:
                reached.add(id)
                waiting += next_of(self.segments[id])
        return frozenset(reached)

    def _check(self) -> None:
        """Raise `ValueError` unless the active segments tile the hash space."""
        expected = 0
        for segment in self.active:
            if segment.start != expected:
                raise ValueError(f"segment {segment.id} starts at {segment.start:#06x}, not at {expected:#06x}")
            expected = segment.end + 1
        if expected != HASH_SPACE:
            raise ValueError(f"no segment has the hash {expected:#06x}")


def _read_segment(topic: str, info: Mapping[str, Any], created_at_ms: int | None) -> LayoutSegment:
    id, start, end = int(info["segmentId"]), int(info["hashRange"]["start"]), int(info["hashRange"]["end"])
    if info["state"] not in ("ACTIVE", "SEALED"):
        raise ValueError(f"segment {id} has the unknown state {info['state']!r}")
    name = segment_kafka_topic(topic, start, end, id, created_at_ms)
    kafka_topic, partition = kafka_partition(name, info.get("legacyTopicName"))
    return LayoutSegment(
        id=id,
        start=start,
        end=end,
        is_active=info["state"] == "ACTIVE",
        parents=_ids(info.get("parentIds", ())),
        children=_ids(info.get("childIds", ())),
        name=name,
        kafka_topic=kafka_topic,
        partition=partition,
    )


def _ids(ids: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(id) for id in ids)


class KeyHashes(dict[bytes, int]):
    """Cache of hashes: those of long keys are computed each time."""

    def __missing__(self, key: bytes) -> int:
        hash = key_hash(key)
        if len(key) <= MAX_CACHED_KEY_BYTES:
            if len(self) >= MAX_CACHED_HASHES:
                self.clear()
            self[key] = hash
        return hash


def key_hash(key: bytes) -> int:
    """Return the hash of a key: Murmur3 (x86, 32 bits, seed 0), low 16 bits, as in Pulsar 5."""
    return mmh3.hash(key) & 0xFFFF if mmh3 else key_hash_in_python(key)


def key_hash_in_python(key: bytes) -> int:
    """Return the same without the extra `fast`, in about 50 times the time."""
    # Bits above 32 are masked once per line only: with unique keys this is the producer's largest cost.
    size, value = len(key), 0
    for block in unpack_from(f"<{size >> 2}I", key):
        block = block * 0xCC9E2D51 & 0xFFFFFFFF
        value ^= ((block << 15) | (block >> 17)) * 0x1B873593 & 0xFFFFFFFF
        value = ((value << 13) | (value >> 19)) * 5 + 0xE6546B64 & 0xFFFFFFFF
    if tail := key[size & ~3 :]:
        block = int.from_bytes(tail, "little") * 0xCC9E2D51 & 0xFFFFFFFF
        value ^= ((block << 15) | (block >> 17)) * 0x1B873593 & 0xFFFFFFFF
    value ^= size
    value = (value ^ (value >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ (value >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return (value ^ (value >> 16)) & 0xFFFF
