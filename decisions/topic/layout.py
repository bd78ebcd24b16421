"""Segment layout: an immutable DAG whose active segments tile the hash space.

PIP-468 "SegmentLayout". Stage: under every decision, and under the controller's and the executor's model of a topic.
All mutations return a new layout. Two kinds of fault are kept apart: `LayoutArgumentError` says that the caller's
argument is wrong, `LayoutStateError` that the layout itself does not allow the change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace as replace_segment

from decisions.topic import lineage
from decisions.topic.segment import BUCKET_RING, NOT_SEALED, Segment, SegmentState, equal_buckets
from schemas.base import MAX_SEGMENT_ID
from schemas.metadata import MAX_ENTRY_BUCKETS, AutoScalePolicyOverride, HashRange, ScalableTopicMetadata, SegmentInfo

HASH_SPACE = 0x10000
"""Number of hashes: `0x0000..0xFFFF`."""
_DERIVED = frozenset({"sealed", "active", "root", "leaf", "legacy"})


class LayoutError(ValueError):
    """Something is wrong with a layout, or with what was asked of it."""


class LayoutArgumentError(LayoutError):
    """The argument is wrong: no such segment, not active, not adjacent, a bad number of segments."""


class LayoutStateError(LayoutError):
    """The state does not allow it: a segment of width 1, a layout that does not tile the hash space."""


@dataclass(frozen=True)
class SegmentLayout:
    """An immutable snapshot of a topic's segments."""

    epoch: int
    next_segment_id: int
    segments: Mapping[int, Segment]
    properties: Mapping[str, str] = field(default_factory=dict)
    auto_scale_policy: AutoScalePolicyOverride | None = None
    created_at_ms: int | None = None
    """Which life of its name the topic is; None where lives are not told apart."""
    unknown: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def create(
        cls, count: int, now_ms: int, properties: Mapping[str, str] | None = None, bucket_budget: int = 0
    ) -> SegmentLayout:
        """The initial layout of `count` equal segments; the last takes the remainder (PIP-468 "Creation").

        `bucket_budget` entry buckets are divided among the segments, each has one at least; 0: the topic has none.
        """
        if not 1 <= count <= HASH_SPACE:
            raise LayoutArgumentError(f"the number of initial segments must be in 1..{HASH_SPACE}, got {count}")
        size = HASH_SPACE // count
        starts = [number * size for number in range(count)]
        ends = [start - 1 for start in starts[1:]] + [HASH_SPACE - 1]
        buckets = equal_buckets(max(1, min(bucket_budget // count, BUCKET_RING))) if bucket_budget > 0 else None
        segments = {
            number: Segment(number, start, end, created_at_ms=now_ms, entry_bucket_splits=buckets)
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        }
        return cls(0, count, MappingProxyType(segments), MappingProxyType(dict(properties or {})))

    @classmethod
    def from_metadata(cls, metadata: ScalableTopicMetadata) -> SegmentLayout:
        """Return a metadata record's layout. Raises `LayoutStateError` if it does not tile the hash space."""
        segments = {number: _read_segment(info) for number, info in metadata.segments.items()}
        layout = cls(
            epoch=metadata.epoch,
            next_segment_id=metadata.next_segment_id,
            segments=MappingProxyType(segments),
            properties=MappingProxyType(dict(metadata.properties)),
            auto_scale_policy=metadata.auto_scale_policy,
            created_at_ms=metadata.created_at_ms,
            unknown=tuple((metadata.model_extra or {}).items()),
        )
        layout.check()
        return layout

    def to_metadata(self) -> ScalableTopicMetadata:
        """The metadata record, with the fields and the derived booleans that Pulsar 5 ships."""
        # By wire names: an unknown field may have the name of an attribute.
        return ScalableTopicMetadata.model_validate(
            {
                **dict(self.unknown),
                "epoch": self.epoch,
                "nextSegmentId": self.next_segment_id,
                "segments": {number: _segment_info(segment) for number, segment in self.segments.items()},
                "properties": dict(self.properties),
                "autoScalePolicy": self.auto_scale_policy,
                "createdAtMs": self.created_at_ms,
            }
        )

    @property
    def tag(self) -> str:
        """Names this state of this life of the topic: two layouts of a topic with the same tag are the same."""
        return f"{self.created_at_ms or 0}.{self.epoch}"

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The active segments in the order of their ranges."""
        segments = [segment for segment in self.segments.values() if segment.is_active]
        return tuple(sorted(segments, key=lambda segment: (segment.start, segment.segment_id)))

    @cached_property
    def has_buckets(self) -> bool:
        """Tell if the topic has entry buckets: an active segment says how many."""
        return any(segment.entry_bucket_splits is not None for segment in self.active)

    def check(self) -> None:
        """Raises `LayoutStateError` unless the active segments tile `0x0000..0xFFFF` without gap or overlap."""
        expected = 0
        for segment in self.active:
            if segment.start != expected:
                fault = "gap" if segment.start > expected else "overlap"
                raise LayoutStateError(
                    f"{fault} before segment {segment.segment_id} at {segment.start:#06x}: expected {expected:#06x}"
                )
            expected = segment.end + 1
        if expected != HASH_SPACE:
            raise LayoutStateError(f"the active segments end at {expected:#06x}, not at 0x10000")

    def find_active_segment(self, hash_value: int) -> Segment:
        """The active segment whose range a hash is in (PIP-468 "SegmentLayout")."""
        if not 0 <= hash_value < HASH_SPACE:
            raise LayoutArgumentError(f"a hash is in 0x0000..0xffff, got {hash_value}")
        index = bisect_right(self.active, hash_value, key=lambda segment: segment.start) - 1
        if index < 0 or self.active[index].end < hash_value:
            raise LayoutStateError(f"no active segment holds the hash {hash_value:#06x}")
        return self.active[index]

    def split_segment(self, segment_id: int, now_ms: int) -> SegmentLayout:
        """Seals an active segment and adds its two halves; of an odd width the lower is one larger.

        PIP-468 "Split Protocol". Each half has half of the entry buckets, of equal width, and one at least.
        """
        parent = self._active_segment(segment_id, "split")
        if parent.width == 1:
            raise LayoutStateError(f"segment {segment_id} holds one hash ({parent.start:#06x}): it cannot be split")
        middle = parent.start + (parent.end - parent.start) // 2
        lower, upper = self._fresh_ids(2)
        child = Segment(
            lower,
            parent.start,
            middle,
            parent_ids=(segment_id,),
            created_at_epoch=self.epoch + 1,
            created_at_ms=now_ms,
            entry_bucket_splits=_buckets_of((parent,), max(1, parent.bucket_count // 2)),
        )
        children = (child, replace_segment(child, segment_id=upper, start=middle + 1, end=parent.end))
        return self._successor([self._sealed(parent, (lower, upper), now_ms), *children], upper + 1)

    def merge_segments(
        self, first_id: int, second_id: int, now_ms: int, max_buckets: int = MAX_ENTRY_BUCKETS
    ) -> SegmentLayout:
        """Seals two adjacent active segments and adds their union; parents stay in call order.

        PIP-468 "Merge Protocol". The union has the entry buckets of both, of equal width and at most `max_buckets`.
        """
        first, second = self._active_segment(first_id, "merge"), self._active_segment(second_id, "merge")
        if first.end + 1 != second.start and second.end + 1 != first.start:
            ranges = " and ".join(f"[{side.start:04x}, {side.end:04x}]" for side in (first, second))
            raise LayoutArgumentError(f"segments are not adjacent: {ranges}")
        (fresh,) = self._fresh_ids(1)
        buckets = min(first.bucket_count + second.bucket_count, max_buckets)
        merged = Segment(
            fresh,
            min(first.start, second.start),
            max(first.end, second.end),
            parent_ids=(first_id, second_id),
            created_at_epoch=self.epoch + 1,
            created_at_ms=now_ms,
            entry_bucket_splits=_buckets_of((first, second), buckets),
        )
        sealed = [self._sealed(segment, (merged.segment_id,), now_ms) for segment in (first, second)]
        return self._successor([*sealed, merged], merged.segment_id + 1)

    def rebucket_segment(self, segment_id: int, bucket_count: int, now_ms: int) -> SegmentLayout:
        """Seal an active segment and add a successor of its range with `bucket_count` equal entry buckets."""
        parent = self._active_segment(segment_id, "rebucket")
        if not 1 <= bucket_count <= BUCKET_RING:
            raise LayoutArgumentError(f"the number of entry buckets must be in 1..{BUCKET_RING}, got {bucket_count}")
        buckets = equal_buckets(bucket_count)
        if buckets == (parent.entry_bucket_splits or ()):
            raise LayoutArgumentError(f"segment {segment_id} has these {bucket_count} entry buckets already")
        (fresh,) = self._fresh_ids(1)
        successor = Segment(
            fresh,
            parent.start,
            parent.end,
            parent_ids=(segment_id,),
            created_at_epoch=self.epoch + 1,
            created_at_ms=now_ms,
            entry_bucket_splits=buckets,
        )
        return self._successor([self._sealed(parent, (fresh,), now_ms), successor], fresh + 1)

    def prune_segment(self, segment_id: int) -> SegmentLayout:
        """Removes a sealed segment, and its id from its parents and children; ids are never used again."""
        if self._segment(segment_id).is_active:
            raise LayoutArgumentError(f"segment {segment_id} is active: only sealed segments are pruned")
        remaining = {number: segment for number, segment in self.segments.items() if number != segment_id}
        for number, relative in remaining.items():
            if segment_id in relative.parent_ids or segment_id in relative.child_ids:
                remaining[number] = replace_segment(
                    relative,
                    parent_ids=tuple(i for i in relative.parent_ids if i != segment_id),
                    child_ids=tuple(i for i in relative.child_ids if i != segment_id),
                )
        return replace(self, epoch=self.epoch + 1, segments=MappingProxyType(remaining))

    def with_policy(self, policy: AutoScalePolicyOverride | None) -> SegmentLayout:
        """Return the layout with another policy override of the topic; the epoch stays."""
        return replace(self, auto_scale_policy=policy)

    def lineage(self, segment_id: int) -> frozenset[int]:
        """Ids of a segment, all its ancestors and all its descendants that are still in the DAG."""
        return lineage.segment_lineage(self.segments, self._segment(segment_id).segment_id)

    def merge_depth(self, segment_id: int) -> int:
        """Merge depth as this layout shows it, counted once: see `decisions.topic.lineage.count_merges`."""
        return self._merge_depths[segment_id] if self._segment(segment_id).parent_ids else 0

    @cached_property
    def _merge_depths(self) -> dict[int, int]:
        return lineage.count_merges(self.segments)

    def _fresh_ids(self, count: int) -> range:
        """Ids never used: from `next_segment_id`, or above every known one where a record has that wrong."""
        first = max(self.next_segment_id, max(self.segments) + 1)
        if first + count > MAX_SEGMENT_ID:
            raise LayoutStateError(f"segment ids are used up: the next would be {first}")
        return range(first, first + count)

    def _segment(self, segment_id: int) -> Segment:
        if (segment := self.segments.get(segment_id)) is None:
            raise LayoutArgumentError(f"segment not found: {segment_id}")
        return segment

    def _active_segment(self, segment_id: int, action: str) -> Segment:
        segment = self._segment(segment_id)
        if not segment.is_active:
            raise LayoutArgumentError(f"cannot {action} non-active segment: {segment_id}")
        return segment

    def _sealed(self, segment: Segment, children: tuple[int, ...], now_ms: int) -> Segment:
        return replace_segment(
            segment, state=SegmentState.SEALED, child_ids=children, sealed_at_epoch=self.epoch + 1, sealed_at_ms=now_ms
        )

    def _successor(self, changed: Iterable[Segment], next_segment_id: int) -> SegmentLayout:
        segments = {**self.segments, **{segment.segment_id: segment for segment in changed}}
        return replace(self, epoch=self.epoch + 1, next_segment_id=next_segment_id, segments=MappingProxyType(segments))


def _buckets_of(parents: Iterable[Segment], count: int) -> tuple[int, ...] | None:
    """The entry buckets of a segment made of others; None where these have none."""
    return None if all(parent.entry_bucket_splits is None for parent in parents) else equal_buckets(count)


def _read_segment(info: SegmentInfo) -> Segment:
    extra, range_extra = info.model_extra, info.hash_range.model_extra
    is_derived = not extra or extra.keys() <= _DERIVED
    return Segment(
        info.segment_id,
        info.hash_range.start,
        info.hash_range.end,
        _STATES[info.state],
        tuple(info.parent_ids),
        tuple(info.child_ids),
        info.created_at_epoch,
        info.sealed_at_epoch,
        info.created_at_ms,
        info.sealed_at_ms,
        info.legacy_topic_name,
        () if is_derived else tuple((name, value) for name, value in (extra or {}).items() if name not in _DERIVED),
        tuple(range_extra.items()) if range_extra else (),
        None if info.entry_bucket_splits is None else tuple(info.entry_bucket_splits),
    )


_STATES = {state.value: state for state in SegmentState}


def _segment_info(segment: Segment) -> SegmentInfo:
    range_unknown = dict(segment.range_unknown)
    return SegmentInfo.model_validate(
        {
            "segmentId": segment.segment_id,
            "hashRange": HashRange.model_validate({**range_unknown, "start": segment.start, "end": segment.end}),
            "state": segment.state.value,
            "parentIds": list(segment.parent_ids),
            "childIds": list(segment.child_ids),
            "createdAtEpoch": segment.created_at_epoch,
            "sealedAtEpoch": NOT_SEALED if segment.is_active else segment.sealed_at_epoch,
            "createdAtMs": segment.created_at_ms,
            "sealedAtMs": NOT_SEALED if segment.is_active else segment.sealed_at_ms,
            "legacyTopicName": segment.legacy_topic_name,
            "entryBucketSplits": None if segment.entry_bucket_splits is None else list(segment.entry_bucket_splits),
            "sealed": not segment.is_active,
            "active": segment.is_active,
            "root": not segment.parent_ids,
            "leaf": not segment.child_ids,
            "legacy": segment.legacy_topic_name is not None,
            **dict(segment.unknown),
        }
    )
