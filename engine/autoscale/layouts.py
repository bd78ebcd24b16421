"""Compact layouts: a tenth of their JSON, plus the values that hot paths need.

Stage: under `engine.autoscale.topics`. A plain layout (`schemas.codecs.plain_events`) is stored as packed segments of
40 bytes each; its JSON is rebuilt byte for byte on demand. A layout with unknown fields is stored as JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
from msgspec import UNSET, Raw
from msgspec.structs import astuple

from decisions.topic.layout import HASH_SPACE, SegmentLayout
from decisions.topic.segment import Segment
from engine.autoscale.shapes import Shape, Shaped, shape_of
from schemas.codecs.plain_events import PlainLayout, PlainRange, PlainSegment, digest_of, read_layout, write_layout
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

SEGMENT: Final = np.dtype([("id", "<i8"), ("shown", "<i4"), ("kept", "<i4"), ("is_single_hash", "?")])
"""Columns of an active segment: id, merge depths, and whether its range is a single hash.

`shown` is the depth in the layout, `kept` the one recorded when the segment was made (guard `explicitLineage`).
"""
_SEGMENT = "qii?"
_BUCKETS = b'"entryBucketSplits"'
_RECENT = 1024
"""Number of decoded layouts in the cache."""


@dataclass(slots=True)
class ReadLayout:
    """An announced layout. Values that every new layout needs are read at once, the rest on demand."""

    record: bytes
    """The whole record: JSON, or a `_Record`."""
    digest: str
    """Digest of the layout (`digest_of`)."""
    epoch: int
    next_segment_id: int
    ids: list[int]
    """Ids of all segments, sorted."""
    active: list[tuple[int, int, int]]
    """Start, id and end of the active segments, in the order of their ranges."""
    has_parents: bool
    """True if any segment has a parent."""
    override: str | None
    """Policy override, as in `KnownLayout`."""
    _layout: SegmentLayout | None = field(default=None, compare=False)

    def in_another_record(self, record: bytes, digest: str) -> "ReadLayout":
        """Return the same layout with another record."""
        return ReadLayout(
            record, digest, self.epoch, self.next_segment_id, self.ids, self.active, self.has_parents, self.override
        )

    @property
    def layout(self) -> SegmentLayout:
        """The layout in the form that decisions use."""
        if self._layout is None:
            self._layout = _layout_of(self.record)
        return self._layout

    def known(self, merge_depths: Mapping[int, int]) -> "KnownLayout":
        """Return the stored form; `merge_depths` are the depths kept through pruning."""
        stored_depth = merge_depths.get
        cells: list[int | bool] = []
        if self.has_parents:
            depth_of = self.layout.merge_depth
            for start, number, end in self.active:
                cells += (number, depth_of(number), stored_depth(number, 0), start == end)
        else:
            for start, number, end in self.active:
                cells += (number, 0, stored_depth(number, 0), start == end)
        segments = _struct_of(len(self.active)).pack(*cells)
        return KnownLayout(self.record, self.digest, self.epoch, self.next_segment_id, segments, self.override)


@cache
def _struct_of(segments: int) -> Struct:
    return Struct("<" + _SEGMENT * segments)


class KnownLayout(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest layout of a topic, in its stored form (`engine.autoscale.topics_codec`)."""

    record: bytes
    """The whole record, as in `ReadLayout`."""
    digest: str
    epoch: int
    next_segment_id: int
    segments: bytes
    """One `SEGMENT` per active segment, in the order of their hash ranges."""
    override: str | None
    """Known fields of the topic's own policy override, JSON."""

    @property
    def layout(self) -> SegmentLayout:
        """The layout in the form that decisions use."""
        return _layout_of(self.record)

    @property
    def metadata_json(self) -> str:
        """The layout's record as JSON in the form of the model."""
        return (self.record if _is_json(self.record) else write_layout(_plain_of(self.record))).decode()

    @property
    def has_buckets(self) -> bool:
        """True if the topic has entry buckets; such a layout is never plain."""
        return _is_json(self.record) and _BUCKETS in self.record and self.layout.has_buckets

    @property
    def active_count(self) -> int:
        """Number of active segments."""
        return len(self.segments) // SEGMENT.itemsize

    @property
    def active_ids(self) -> list[int]:
        """Ids of the active segments, in the order of their ranges."""
        ids: list[int] = np.frombuffer(self.segments, SEGMENT)["id"].tolist()
        return ids


class _Record(msgspec.Struct, array_like=True, gc=False):
    """A plain layout."""

    is_derived: bool
    """True if its segments carry the fields that Pulsar derives, as in `_derived_fields`."""
    epoch: int
    next_segment_id: int
    segments: list[Segment]
    properties: dict[str, str]
    policy: str | None
    created_at_ms: int | None


MAX_SHAPES = 1_000
"""Size of the shape cache, which is cleared when full. Most split topics have their own shape."""
_SHAPES: dict[Shape, tuple[list[bytes], ReadLayout] | None] = {}
"""By shape, the layout read and its record cut at the instant; None after the first occurrence."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


def plain_layout(layout: Raw | bytes) -> ReadLayout | None:
    """Read the layout JSON of an announcement; None if it needs the model. Raises `LayoutError`."""
    text = bytes(layout)
    shaped = shape_of(text)
    cached = None if shaped is None else _SHAPES.get(shaped.shape)
    if shaped is not None and cached is not None:
        parts, read = cached
        return read.in_another_record(shaped.packed.join(parts), digest_of(text))
    decoded = _read_anew(text)
    if decoded is not None and shaped is not None:
        _cache_shape(shaped, text, decoded)
    return decoded


def _read_anew(layout: bytes) -> ReadLayout | None:
    plain = read_layout(layout)
    return None if plain is None else _read_layout(plain, digest_of(layout))


def _cache_shape(shaped: Shaped, layout: bytes, read: ReadLayout) -> None:
    """Cache a layout's shape, once seen twice, if another instant is all that differs in a second reading."""
    if shaped.shape not in _SHAPES:
        if len(_SHAPES) >= MAX_SHAPES:
            _SHAPES.clear()
        _SHAPES[shaped.shape] = None
        return
    other = shaped.at_another_instant(layout)
    parts, other_shape = read.record.split(shaped.packed), shape_of(other)
    if other_shape is not None and len(parts) == shaped.shape.times + 1:
        expected = read.in_another_record(other_shape.packed.join(parts), digest_of(other))
        if _read_anew(other) == expected:
            _SHAPES[shaped.shape] = parts, read


def layout_of_model(metadata: ScalableTopicMetadata) -> ReadLayout:
    """Build the layout from a record that the model has read. Raises `LayoutError`."""
    text = metadata.to_json().encode()
    if (plain := plain_layout(text)) is not None:
        return plain
    layout = SegmentLayout.from_metadata(metadata)
    return ReadLayout(
        text,
        digest_of(text),
        layout.epoch,
        layout.next_segment_id,
        sorted(layout.segments),
        [(segment.start, segment.segment_id, segment.end) for segment in layout.active],
        any(segment.parent_ids for segment in layout.segments.values()),
        layout.auto_scale_policy.known_json() if layout.auto_scale_policy else None,
        layout,
    )


def layout_of_json(text: str) -> ReadLayout:
    """Read a layout as former releases stored it: its record in JSON."""
    return plain_layout(text.encode()) or layout_of_model(ScalableTopicMetadata.model_validate_json(text))


def _is_json(record: bytes) -> bool:
    return record[:1] == b"{"


@lru_cache(_RECENT)
def _layout_of(record: bytes) -> SegmentLayout:
    if _is_json(record):
        return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(record))
    return _layout_in(_decode(record))


def _layout_in(record: _Record) -> SegmentLayout:
    policy = None if record.policy is None else AutoScalePolicyOverride.model_validate_json(record.policy)
    layout = SegmentLayout(
        record.epoch,
        record.next_segment_id,
        MappingProxyType({segment.segment_id: segment for segment in record.segments}),
        MappingProxyType(record.properties),
        policy,
        record.created_at_ms,
    )
    layout.check()
    return layout


def _derived_fields(
    is_active: bool, parents: Sequence[int], children: Sequence[int], legacy: str | None
) -> tuple[bool, bool, bool, bool, bool]:
    """Return the fields that Pulsar derives: sealed, active, root, leaf, legacy."""
    return not is_active, is_active, not parents, not children, legacy is not None


_NOT_DERIVED = (UNSET,) * 5


def _read_layout(plain: PlainLayout, digest: str) -> ReadLayout | None:
    """Read a layout in one pass; None if derived fields are wrong or partial. Raises `LayoutError`."""
    segments: list[tuple[object, ...]] = []
    active: list[tuple[int, int, int]] = []
    derived: Sequence[object] = ()
    has_parents = False
    for segment in plain.segments.values():
        number, key_range, state, parents, children, *times, legacy, sealed, is_active, root, leaf, is_legacy = astuple(
            segment
        )
        derived_fields = (sealed, is_active, root, leaf, is_legacy)
        expected = (
            _NOT_DERIVED if derived is _NOT_DERIVED else _derived_fields(state == "ACTIVE", parents, children, legacy)
        )
        if derived_fields != expected:
            if segments or derived_fields != _NOT_DERIVED:
                return None
            derived = _NOT_DERIVED
        segments.append((number, key_range.start, key_range.end, state, parents, children, *times, legacy, (), ()))
        if state == "ACTIVE":
            active.append((key_range.start, number, key_range.end))
        if parents:
            has_parents = True
    policy = None if plain.auto_scale_policy is UNSET else bytes(plain.auto_scale_policy).decode()
    record = _encode(
        (
            derived is not _NOT_DERIVED,
            plain.epoch,
            plain.next_segment_id,
            segments,
            plain.properties,
            policy,
            None if plain.created_at_ms is UNSET else plain.created_at_ms,
        )
    )
    active.sort()
    if not _tile_hash_space(active):
        _layout_of(record)  # says where not
    override = None if policy is None else AutoScalePolicyOverride.model_validate_json(policy).known_json()
    return ReadLayout(
        record, digest, plain.epoch, plain.next_segment_id, sorted(plain.segments), active, has_parents, override
    )


def _tile_hash_space(active: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether the active segments tile the hash space, as in `SegmentLayout.check`."""
    expected = 0
    for start, _, end in active:
        if start != expected:
            return False
        expected = end + 1
    return expected == HASH_SPACE


def _plain_of(packed: bytes) -> PlainLayout:
    """Return the announced layout of a `_Record`."""
    record = _decode(packed)
    segments = {}
    for segment in record.segments:
        segments[segment.segment_id] = PlainSegment(
            segment.segment_id,
            PlainRange(segment.start, segment.end),
            segment.state.value,
            list(segment.parent_ids),
            list(segment.child_ids),
            segment.created_at_epoch,
            segment.sealed_at_epoch,
            segment.created_at_ms,
            segment.sealed_at_ms,
            segment.legacy_topic_name,
            *(
                _derived_fields(segment.is_active, segment.parent_ids, segment.child_ids, segment.legacy_topic_name)
                if record.is_derived
                else _NOT_DERIVED
            ),
        )
    return PlainLayout(
        record.epoch,
        record.next_segment_id,
        segments,
        record.properties,
        UNSET if record.policy is None else Raw(record.policy.encode()),
        UNSET if record.created_at_ms is None else record.created_at_ms,
    )
