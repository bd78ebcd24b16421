"""The layout and policy records as Pulsar 5 ships them.

Sources: PIP-468 "Metadata Store Schema", PIP-483 "Policy resolution". Field names and JSON are Pulsar's; where 5.0.0
differs from the PIP text (an active segment has `sealedAtEpoch` -1, not 0; two wall-clock fields exist), these
models follow what is shipped and accept both. Unknown fields survive a round trip. The meaning of a layout (tiling,
lineage, split, merge) is in `decisions.topic.layout`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, FailFast, Field, RootModel, field_validator, model_validator
from pydantic.alias_generators import to_camel

from schemas.base import Epoch, Hash, Millis, SegmentId, Wire

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_SEGMENTS_IN_METADATA = 65_536 * 2
"""Limit on the segment records of a layout: 65,536 can be active at once."""

SegmentState = Literal["ACTIVE", "SEALED"]
Profile = Literal["default", "pip-483", "pulsar-5.0"]
"""Defaults under every policy.

PIP-483 with Anabranch's guards, its text, or the decision that Pulsar 5.0 ships.
"""
MAX_ENTRY_BUCKETS = 65_536
"""Most entry buckets of a segment: one for each hash of their ring."""
BucketStart = Annotated[int, Field(ge=1, le=MAX_ENTRY_BUCKETS - 1)]


NULL: Final = RootModel[None](None)
"""Null in an unknown field, kept although our own unset fields are left out."""


class MetadataRecord(Wire):
    """A record of Pulsar's: as `Wire`, but unknown fields survive a round trip, null or not.

    They may have any name, even of an attribute here: only wire names are recognized.
    """

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)

    @classmethod
    def model_validate_json(cls, *arguments: Any, **options: Any) -> Self:
        """Parse a record in JSON by its wire names."""
        return super().model_validate_json(*arguments, **{"by_alias": True, "by_name": False, **options})

    @model_validator(mode="after")
    def _nulls_are_kept(self) -> Self:
        unknown = self.__pydantic_extra__
        if unknown and None in unknown.values():
            unknown.update((name, NULL) for name, value in unknown.items() if value is None)
        return self


class HashRange(MetadataRecord):
    """An inclusive range of the 16-bit hash space (PIP-468 "SegmentInfo", field hashRange)."""

    start: Hash
    end: Hash

    @model_validator(mode="after")
    def _ordered(self) -> HashRange:
        if self.start > self.end:
            raise ValueError(f"hash range starts at {self.start:#06x}, after its end {self.end:#06x}")
        return self


class SegmentInfo(MetadataRecord):
    """A segment of the DAG (PIP-468 "SegmentInfo"; both instants, and -1 if not sealed, as in Pulsar 5)."""

    segment_id: SegmentId
    hash_range: HashRange
    state: SegmentState
    parent_ids: Annotated[list[SegmentId], FailFast()] = Field(default_factory=list)
    child_ids: Annotated[list[SegmentId], FailFast()] = Field(default_factory=list)
    created_at_epoch: Epoch = 0
    sealed_at_epoch: int = -1
    """Layout epoch in which the segment was sealed; -1 (Pulsar 5) or 0 (PIP text) while it is active."""
    created_at_ms: int = 0
    """Wall clock of the creation, milliseconds since 1970."""
    sealed_at_ms: int = -1
    """Wall clock of the sealing, milliseconds since 1970; -1 while active."""
    legacy_topic_name: str | None = None
    """Set on the wrapped old partitions of a migrated topic."""
    entry_bucket_splits: list[BucketStart] | None = None
    """Starts of the entry buckets after the first, ascending, on the ring of 16-bit entry hashes.

    Empty = one bucket, absent = the topic has no entry buckets. Consumers share a segment by them.
    """

    @field_validator("entry_bucket_splits", mode="before")
    @classmethod
    def _splits_ascend(cls, splits: object) -> object:
        if isinstance(splits, list) and not all(
            type(left) is type(right) is int and left < right
            for left, right in pairwise([0, *splits, MAX_ENTRY_BUCKETS])
        ):
            raise ValueError(f"entryBucketSplits must ascend from 1 to {MAX_ENTRY_BUCKETS - 1}")
        return splits


class AutoScalePolicyOverride(MetadataRecord):
    """The knobs of PIP-483, all optional: an unset field falls through to the next wider scope.

    The first fifteen are Pulsar's own, with its JSON names. The others are Anabranch's guards (design "Profiles and
    guards"): off in the profile `pip-483`, on in `default`; a real Pulsar does not know them and must not receive
    them. The last six concern entry buckets; two of them are Pulsar's.
    """

    enabled: bool | None = None
    """Master switch of automatic split and merge."""
    max_segments: int | None = None
    """Hard ceiling on active segments."""
    min_segments: int | None = None
    """Hard floor on active segments."""
    max_dag_depth: int | None = None
    """Merges in a lineage after which it is no longer merged."""
    split_cooldown_seconds: int | None = None
    """Minimum time between two automatic splits of a topic, seconds."""
    merge_cooldown_seconds: int | None = None
    """Minimum time between two automatic merges of a topic, seconds."""
    merge_window_seconds: int | None = None
    """Time for which both segments must have stayed cold before they merge, seconds."""
    split_msg_rate_in_threshold: float | None = None
    """Messages in per second above which a segment splits."""
    split_bytes_rate_in_threshold: int | None = None
    """Bytes in per second above which a segment splits."""
    split_msg_rate_out_threshold: float | None = None
    """Messages out per second above which a segment splits."""
    split_bytes_rate_out_threshold: int | None = None
    """Bytes out per second above which a segment splits."""
    merge_msg_rate_in_threshold: float | None = None
    """Messages in per second below which a segment is cold."""
    merge_bytes_rate_in_threshold: int | None = None
    """Bytes in per second below which a segment is cold."""
    merge_msg_rate_out_threshold: float | None = None
    """Messages out per second below which a segment is cold."""
    merge_bytes_rate_out_threshold: int | None = None
    """Bytes out per second below which a segment is cold."""

    merge_keeps_consumers: bool | None = None
    """Guard: never merge below the number of consumers that need a segment each."""
    skip_unsplittable: bool | None = None
    """Guard: never split a segment of width 1; report one hot key instead."""
    normalized_coldness: bool | None = None
    """Guard: choose the coldest pair by rate relative to threshold, not by adding messages to bytes."""
    cold_since_threshold: bool | None = None
    """Guard: a segment is cold since its load fell below the merge thresholds, not since its last record."""
    max_load_age_seconds: int | None = None
    """Guard: a load not seen for this long is unknown, neither hot nor cold, seconds; 0 = loads never age."""
    explicit_lineage: bool | None = None
    """Guard: merge depth and clocks survive the pruning of sealed segments."""
    retry_backoff_seconds: int | None = None
    """Guard: delay after a failed or superseded decision, doubled at each repetition, seconds; 0 = none."""
    threshold_crossing: bool | None = None
    """Guard: a sample that crosses a threshold is significant even inside the change band."""
    merge_headroom: float | None = None
    """Guard: a segment is also cold below half of this fraction of its split thresholds.

    So two merged segments stay below the fraction. 0 = below the merge thresholds only.
    """
    settle_seconds: int | None = None
    """Guard: segments from a split are not merged for this long, seconds; 0 = no such pause."""
    regret_window_seconds: int | None = None
    """Guard: time for which neighbours whose merge was reversed must be cold to merge again, seconds.

    For a merge into the whole key space after three reversals; after one or two, a third or two thirds of it. For a
    part of the space, the square of that part. 0 = only `mergeWindowSeconds` applies.
    """
    returns_within_seconds: int | None = None
    """Guard: a load that returned after a shorter pause than this is expected to return again, seconds.

    Merges then wait half as long again as the pause was. 0 = never expected.
    """
    hot_key_splits: int | None = None
    """Guard: halvings without relief after which a segment has one hot key and is not split; 0 = never."""
    hot_key_retry_seconds: int | None = None
    """Time after which splits of one hot key are retried, doubled each time it is found again, seconds."""
    parallel_actions: bool | None = None
    """Guard: all segments and pairs that may act do so in one evaluation; cooldowns apply per segment."""
    urgent_overload: float | None = None
    """Guard: a segment this many times over a split threshold ignores cooldowns; 0 = never."""
    prompt_splits: bool | None = None
    """Guard: evaluate a topic at once if a significant sample is above a split threshold.

    Needs `thresholdCrossing`.
    """

    rebucket_cooldown_seconds: int | None = None
    """Minimum time between two automatic rebuckets of a topic, seconds; a field of Pulsar 5.0."""
    split_vs_rebucket_min_msg_rate_in_threshold: float | None = None
    """Messages in per second of the busiest segment below which consumers get more buckets, not a segment.

    A field of Pulsar 5.0.
    """
    max_entry_buckets_per_segment: int | None = None
    """Hard ceiling on the entry buckets of a segment."""
    entry_bucket_budget: int | None = None
    """Entry buckets of a new topic, divided among its segments; 0 = none."""
    rebuckets: bool | None = None
    """Guard: consumers share segments by entry buckets, and a segment may get more of them.

    That is the action `rebucket`, where a split is not worth it. Needs a layout with entry buckets.
    """
    as_shipped: bool | None = None
    """Decide as Pulsar 5.0 ships it.

    A segment without entry buckets counts as one, a candidate of one hash holds the split, and byte rates are called
    `byteRateIn` and `byteRateOut`.
    """


PULSAR_POLICY_FIELDS = tuple(AutoScalePolicyOverride.model_fields)[:15]
"""Fields that every Pulsar 5 knows, in its order; 5.0.0 also knows two of `BUCKET_POLICY_FIELDS`."""
BUCKET_POLICY_FIELDS = tuple(AutoScalePolicyOverride.model_fields)[-6:]
"""Fields without effect on a topic without entry buckets."""


class ScalableTopicMetadata(MetadataRecord):
    """The whole layout of one scalable topic (PIP-468 "Metadata Store Schema")."""

    epoch: Epoch
    next_segment_id: SegmentId
    segments: dict[SegmentId, SegmentInfo] = Field(max_length=MAX_SEGMENTS_IN_METADATA)
    properties: dict[str, str] = Field(default_factory=dict)
    auto_scale_policy: AutoScalePolicyOverride | None = None
    created_at_ms: Millis | None = None
    """Creation time of the topic's incarnation, greater after each recreation.

    Our own field; absent in a real Pulsar, and for topics of an older controller.
    """

    @model_validator(mode="after")
    def _keys_are_ids(self) -> ScalableTopicMetadata:
        for key, segment in self.segments.items():
            if key != segment.segment_id:
                raise ValueError(f"segments[{key}] has segmentId {segment.segment_id}")
        return self


RATES = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")
"""The four rates in the PIP's order, by their wire names; also the reasons of a load-driven split.

Code in columns has them as four places without names: `schemas.codecs`, `engine.kernel.records`, `decisions.autoscale`.
"""
