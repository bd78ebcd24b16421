"""What the job remembers of a bucket of topics, and its packed form (DESIGN section 7).

Stage: inside the stateful operator. `TopicState` is what is known of one topic apart from its loads (those are in
`streaming.loads`): layout, consumers, clocks, the open decision, the last hold. The packed form starts with a version
byte and holds one JSON record per topic, so that a batch re-encodes only the topics that it changed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pydantic_core

from decisions.layout import SegmentLayout
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

STATE_VERSION = 1
_LENGTH = struct.Struct(">I")


class StateError(RuntimeError):
    """The stored state cannot be read: its version is newer than this code, or it is damaged."""


@dataclass
class Flight:
    """The open decision of a topic."""

    decision_id: str
    epoch: int
    """Layout epoch that was decided on."""
    since: int
    """Batch time of the decision, milliseconds."""
    action: str
    """`split` or `merge`."""
    applied: bool = False
    """The executor has said so; the flight ends when the layout shows it too."""


@dataclass
class TopicState:
    """What is known of one topic; instants are milliseconds since 1970."""

    name: str
    metadata: ScalableTopicMetadata | None = None
    consumers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Subscription to (type, sessions)."""
    last_split_at: int | None = None
    last_merge_at: int | None = None
    merge_depths: dict[int, int] = field(default_factory=dict)
    """Merges in the lineage of each segment, kept through pruning."""
    flight: Flight | None = None
    failures: int = 0
    failed_at: int | None = None
    failed_action: str | None = None
    attempt_of: str | None = None
    """What the last decision was, and on which epoch; the same again is the next attempt."""
    attempts: int = 0
    decision_seq: int = 0
    hold_seq: int = 0
    hold_gate: str | None = None
    due: int | None = None
    """The instant for which an extra tick was last asked."""

    @cached_property
    def layout(self) -> SegmentLayout | None:
        """The layout as the decisions see it; reset by `set_metadata`."""
        return None if self.metadata is None else SegmentLayout.from_metadata(self.metadata)

    @cached_property
    def active_ids(self) -> frozenset[int]:
        """Ids of the active segments; empty when no layout is known."""
        return frozenset(segment.segment_id for segment in self.layout.active) if self.layout else frozenset()

    def set_metadata(self, metadata: ScalableTopicMetadata, layout: SegmentLayout) -> None:
        """Takes over a newer layout."""
        self.metadata = metadata
        self.__dict__.pop("active_ids", None)
        self.__dict__["layout"] = layout

    @property
    def override(self) -> AutoScalePolicyOverride | None:
        """The topic's own policy override, which travels in its metadata."""
        return self.metadata.auto_scale_policy if self.metadata else None

    def pack(self) -> bytes:
        """This topic as one JSON record."""
        record: dict[str, Any] = {key: value for key, value in self.__dict__.items() if key not in _NOT_PACKED}
        record["metadata"] = None if self.metadata is None else self.metadata.to_json()
        record["flight"] = None if self.flight is None else self.flight.__dict__
        return pydantic_core.to_json(record)

    @classmethod
    def unpack(cls, packed: bytes) -> TopicState:
        """The inverse of `pack`."""
        record = pydantic_core.from_json(packed)
        text = record.pop("metadata")
        flight = record.pop("flight")
        record["consumers"] = {name: (kind, count) for name, (kind, count) in record["consumers"].items()}
        record["merge_depths"] = {int(key): depth for key, depth in record["merge_depths"].items()}
        return cls(
            metadata=None if text is None else ScalableTopicMetadata.model_validate_json(text),
            flight=None if flight is None else Flight(**flight),
            **record,
        )


_NOT_PACKED = ("layout", "active_ids", "metadata", "flight")


@dataclass
class BucketState:
    """All topics of a bucket, and the policies that reach every bucket."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    cluster_policy: str | None = None
    """The cluster's override as JSON; None = the one of the job's configuration."""
    namespace_policies: dict[str, str] = field(default_factory=dict)
    """`tenant/namespace` to its override as JSON."""
    changed: set[str] = field(default_factory=set)
    """Topics that differ from their packed record."""
    header_changed: bool = False
    _packed: dict[str, bytes] = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        """Whether `pack` would give other bytes than were unpacked."""
        return bool(self.changed) or self.header_changed

    def touch(self, name: str) -> TopicState:
        """The topic's state, made if it is new, and marked as changed."""
        self.changed.add(name)
        return self.topics.setdefault(name, TopicState(name))

    def remove(self, name: str) -> None:
        """Forgets a topic."""
        if self.topics.pop(name, None) is not None:
            self.changed.add(name)

    def pack(self) -> bytes:
        """Version byte, then length-prefixed JSON: the header, then one record per topic."""
        for name in self.changed:
            topic = self.topics.get(name)
            if topic is None:
                self._packed.pop(name, None)
            else:
                self._packed[name] = topic.pack()
        self.changed.clear()
        self.header_changed = False
        header = pydantic_core.to_json({"cluster": self.cluster_policy, "namespaces": self.namespace_policies})
        parts = [bytes([STATE_VERSION])]
        for record in (header, *self._packed.values()):
            parts += (_LENGTH.pack(len(record)), record)
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes) -> BucketState:
        """The inverse of `pack`; raises `StateError` for a newer version or damaged bytes."""
        records = list(_records(packed))
        if not records:
            raise StateError("the state of a bucket is empty bytes")
        header = pydantic_core.from_json(records[0])
        topics = [TopicState.unpack(record) for record in records[1:]]
        return cls(
            topics={topic.name: topic for topic in topics},
            cluster_policy=header["cluster"],
            namespace_policies=header["namespaces"],
            _packed={topic.name: record for topic, record in zip(topics, records[1:], strict=True)},
        )


def _records(packed: bytes) -> list[bytes]:
    if not packed or packed[0] != STATE_VERSION:
        found = packed[0] if packed else "none"
        raise StateError(
            f"state version {found}, this code reads {STATE_VERSION}: run the release that wrote it, or newer"
        )
    records, at = [], 1
    while at < len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        if at + length > len(packed):
            raise StateError(f"state is cut short: a record of {length} bytes at {at} of {len(packed)}")
        records.append(packed[at : at + length])
        at += length
    return records
