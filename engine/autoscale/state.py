"""What the job remembers of a bucket of topics, and its packed form (DESIGN section 7).

Stage: inside the stateful operator. `TopicState` is what is known of one topic apart from its loads (those are in
`engine.autoscale.loads`): layout, consumers, clocks, the open decision, the last hold. The packed form is a base and a
log of changes: a version byte, then length-prefixed JSON records, compressed; the log has the topics that a batch
changed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pydantic_core

from decisions.topic.layout import SegmentLayout
from schemas.ids import canonical_json, decision_id
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

STATE_VERSION = 3
MOST_DELETED = 1_000
"""Deleted topics of a bucket that are remembered, so that announcements that come late do not bring them back."""
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
    metadata_json: str | None = None
    """The layout's record; as JSON, because ten segments are 3 kB so and 30 kB as models."""
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
    layout_sender: int = 0
    """Whose announcement the layout is (`schemas.messages.Sender`)."""
    consumers_sender: int = 0
    """Whose the newest one about consumers is."""
    due: int | None = None
    """The instant for which an extra tick was last asked."""

    @cached_property
    def layout(self) -> SegmentLayout | None:
        """The layout as the decisions see it; reset by `set_layout`."""
        if self.metadata_json is None:
            return None
        return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(self.metadata_json))

    @cached_property
    def active_ids(self) -> frozenset[int]:
        """Ids of the active segments; empty when no layout is known."""
        return frozenset(segment.segment_id for segment in self.layout.active) if self.layout else frozenset()

    def set_layout(self, metadata_json: str, layout: SegmentLayout) -> None:
        """Takes over a newer layout and the record that it was read off."""
        self.metadata_json = metadata_json
        self.__dict__.pop("active_ids", None)
        self.__dict__["layout"] = layout

    def follow_lineage(self, layout: SegmentLayout, now: int) -> None:
        """Keeps clocks and merge depths explicitly, from what was committed: the segments that `layout` adds.

        One parent is a split, two or more are a merge (facts of Pulsar, 1.5); a clock never goes back, and never lies
        in this job's future.
        """
        before = self.layout.segments if self.layout else {}
        depths = {i: depth for i, depth in self.merge_depths.items() if i in layout.segments}
        for segment in sorted(layout.segments.values(), key=lambda segment: segment.segment_id):
            if segment.segment_id in before:
                continue
            at = min(segment.created_at_ms, now)
            if len(segment.parent_ids) == 1:
                self.last_split_at = max(self.last_split_at or at, at)
            elif segment.parent_ids:
                self.last_merge_at = max(self.last_merge_at or at, at)
            if not segment.parent_ids:
                depths[segment.segment_id] = 0
                continue
            kept = [self.merge_depths.get(parent, depths.get(parent, 0)) for parent in segment.parent_ids]
            own = max(kept, default=0) + (len(segment.parent_ids) > 1)
            depths[segment.segment_id] = max(own, layout.merge_depth(segment.segment_id))
        self.merge_depths = depths

    def begin_flight(self, epoch: int, action: str, segments: list[int], now: int) -> str:
        """A decision has been taken: it is open from `now` on. Answers its id."""
        attempt_of = canonical_json([epoch, action, segments])
        self.attempts = self.attempts + 1 if self.attempt_of == attempt_of else 1
        self.attempt_of = attempt_of
        identity = decision_id(self.name, epoch, action, segments, self.attempts)
        self.flight = Flight(identity, epoch, now, action)
        self.hold_gate = None
        self.decision_seq += 1
        return identity

    def hold_at(self, gate: str) -> None:
        """Another gate has become the binding one."""
        self.hold_gate = gate
        self.hold_seq += 1

    @property
    def override(self) -> AutoScalePolicyOverride | None:
        """The topic's own policy override, which travels in its metadata."""
        return self.layout.auto_scale_policy if self.layout else None

    def pack(self) -> bytes:
        """This topic as one JSON record."""
        record: dict[str, Any] = {key: value for key, value in self.__dict__.items() if key not in _NOT_PACKED}
        record["metadata"] = record.pop("metadata_json")
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
        return cls(metadata_json=text, flight=None if flight is None else Flight(**flight), **record)


_NOT_PACKED = ("layout", "active_ids", "flight")


@dataclass
class BucketState:
    """All topics of a bucket, and the policies that reach every bucket."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    cluster_policy: str | None = None
    """The cluster's override as JSON; None = the one of the job's configuration."""
    namespace_policies: dict[str, str] = field(default_factory=dict)
    """`tenant/namespace` to its override as JSON."""
    policy_senders: dict[str, int] = field(default_factory=dict)
    """Whose announcement the override of a namespace is, or of the cluster (empty name), gone ones included."""
    deleted_by: dict[str, int] = field(default_factory=dict)
    """Topics that are gone and who said so, the newest `MOST_DELETED`: what comes late does not bring them back."""
    changed: set[str] = field(default_factory=set)
    """Topics that differ from what was packed."""
    header_changed: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether the packed form does not hold everything yet."""
        return bool(self.changed) or self.header_changed

    def touch(self, name: str) -> TopicState:
        """The topic's state, made if it is new, and marked as changed."""
        self.changed.add(name)
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicState(name)
        return topic

    def remove(self, name: str, sender: int | None = None) -> None:
        """Forgets a topic, as `sender` has said."""
        if sender is not None:
            self.deleted_by.pop(name, None)
            self.deleted_by[name] = sender
            while len(self.deleted_by) > MOST_DELETED:
                del self.deleted_by[next(iter(self.deleted_by))]
            self.header_changed = True
        if self.topics.pop(name, None) is not None:
            self.changed.add(name)

    def pack(self) -> bytes:
        """All of it, as a base."""
        packed = self._records([], self.topics.values())
        self._forget_changes()
        return packed

    def pack_changes(self) -> bytes:
        """What has changed since the last call of this or of `pack`, as an entry of the log."""
        changed = sorted(self.changed)
        gone = [name for name in changed if name not in self.topics]
        packed = self._records(gone, [self.topics[name] for name in changed if name in self.topics])
        self._forget_changes()
        return packed

    @classmethod
    def unpack(cls, packed: bytes, log: Iterable[bytes] = ()) -> BucketState:
        """The inverse of `pack` and of what `pack_changes` added since; raises `StateError` for a newer version or
        damaged bytes."""
        state = cls()
        for entry in ([packed] if packed else []) + list(log):
            header, *records = _records(entry)
            fields = pydantic_core.from_json(header)
            state.cluster_policy, state.namespace_policies = fields["cluster"], fields["namespaces"]
            state.policy_senders, state.deleted_by = fields.get("policySenders", {}), fields.get("deletedBy", {})
            for name in fields.get("gone", ()):
                state.topics.pop(name, None)
            for topic in map(TopicState.unpack, records):
                state.topics[topic.name] = topic
        return state

    def _records(self, gone: list[str], topics: Iterable[TopicState]) -> bytes:
        header = {
            "cluster": self.cluster_policy,
            "namespaces": self.namespace_policies,
            "gone": gone,
            "policySenders": self.policy_senders,
            "deletedBy": self.deleted_by,
        }
        parts: list[bytes] = []
        for record in (pydantic_core.to_json(header), *(topic.pack() for topic in topics)):
            parts += (_LENGTH.pack(len(record)), record)
        return bytes([STATE_VERSION]) + zlib.compress(b"".join(parts), 1)

    def _forget_changes(self) -> None:
        self.changed.clear()
        self.header_changed = False


def _records(packed: bytes) -> list[bytes]:
    version = packed[0]
    if not 1 <= version <= STATE_VERSION:
        raise StateError(
            f"state version {version}, this code reads up to {STATE_VERSION}: run the release that wrote it"
        )
    try:
        plain = zlib.decompress(packed[1:]) if version > 1 else packed[1:]
    except zlib.error as error:
        raise StateError(f"the state of a bucket is damaged: {error}") from error
    records, at = [], 0
    while at < len(plain):
        if at + _LENGTH.size > len(plain):
            raise StateError(f"state is cut short at {at} of {len(plain)} bytes")
        (length,) = _LENGTH.unpack_from(plain, at)
        at += _LENGTH.size
        if at + length > len(plain):
            raise StateError(f"state is cut short: a record of {length} bytes at {at} of {len(plain)}")
        records.append(plain[at : at + length])
        at += length
    if not records:
        raise StateError("the state of a bucket holds no record, not even its header")
    return records


_RECORD_V1 = np.dtype([
    ("topic", "<i4"), ("segment", "<i8"), ("rates", "<f8", (4,)),
    ("modified_at", "<i8"), ("seen_at", "<i8"), ("cold_since", "<i8"), ("sampled_at", "<i8"),
])  # fmt: skip
_HEADER_V1 = struct.Struct(">BI")


def unpack_loads_v1(packed: bytes) -> tuple[list[str], dict[str, np.ndarray]]:
    """Topic names and columns of loads as version 1 packed them; raises `StateError` for damaged bytes."""
    if len(packed) < _HEADER_V1.size:
        raise StateError(f"the packed loads are cut short: {len(packed)} bytes")
    start = _HEADER_V1.size + _HEADER_V1.unpack_from(packed)[1]
    if len(packed) < start or (len(packed) - start) % _RECORD_V1.itemsize:
        raise StateError("the packed loads are cut short")
    records = np.frombuffer(packed, _RECORD_V1, offset=start)
    return pydantic_core.from_json(packed[_HEADER_V1.size : start]), {
        name: records[name] for name in _RECORD_V1.names or ()
    }
