"""The snapshot that `decide` sees and the answer that it gives, as JSON (design "Snapshot and answer").

`anabranch decide` reads one snapshot a line; the `decisions` table keeps the whole snapshot of each decision in
`inputs`, so that any decision can be taken again. `decisions.autoscale.snapshot` turns this into the frozen values that
the evaluator works on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from schemas.base import Count, Rate, SegmentId, TopicName, Wire
from schemas.delivery import Delivery
from schemas.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

Trigger = Literal["consumer", "tick"]
"""`consumer` evaluates the consumer rule only, `tick` everything (PIP-483 "Evaluation triggers")."""

Hash = Annotated[int, Field(ge=0, le=65_535)]
Instant = Annotated[int, Field(ge=-(2**53), le=2**53, description="milliseconds since 1970-01-01T00:00:00Z")]


class LoadRecord(Wire):
    """The last accepted load of a segment: four rates per second, and the instants that windows are measured from."""

    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate
    modified_at: Instant
    """When this record was accepted as a significant change."""
    seen_at: Instant | None = None
    """When any sample of the segment was last seen, significant or not; `modified_at` stands in."""
    cold_since: Instant | None = None
    """Since when all four rates have been below the merge thresholds; `modified_at` stands in."""
    returned_after: Count | None = None
    """How long the pause was after which the load came back last, milliseconds; 0 = it fell, absent = it never did."""


class SubscriptionCount(Wire):
    """The sessions of one subscription."""

    type: SubscriptionType
    count: Count


class InFlight(Wire):
    """The open decision of a topic."""

    decision_id: str
    since: Instant
    action: Literal["merge"] | None = None
    """`merge`: only merges are open, and none has been applied yet; by the guard `parallelActions` a split is decided
    meanwhile. Absent = nothing is decided."""


class SegmentPast(Wire):
    """Where an active segment comes from (guard `settleSeconds`)."""

    at: Instant
    """When it was made."""
    made: Literal["split", "merge"]
    regrets: Count = 0
    """How often a merge of its range was split again soon."""
    returned_after: Count = 0
    """How long the pause was after which the load of what was split came back last, milliseconds; 0 = it did not."""
    finest: Count = 0
    """Hashes of the narrowest piece that was merged into its range."""


class HotKeyRecord(Wire):
    """One hot key that was found: splits brought no relief (guard `hotKeySplits`). Hashes are inclusive."""

    start: Hash
    end: Hash
    within_start: Hash
    within_end: Hash
    """The range that was split in search of it."""
    overload: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Times the split threshold."""
    found_at: Instant
    tries: Count = 1
    """How often it was found."""


class Snapshot(Wire):
    """Everything that one evaluation of one topic sees."""

    topic: TopicName
    now: Instant
    trigger: Trigger = "tick"
    layout: ScalableTopicMetadata
    loads: dict[SegmentId, LoadRecord] = Field(default_factory=dict)
    """By segment id; a missing load is a missing record."""
    consumers: dict[str, SubscriptionCount] = Field(default_factory=dict)
    """By subscription name."""
    policy: AutoScalePolicyOverride = AutoScalePolicyOverride()
    """Laid over the profile's defaults; the effective policy when it was recorded by the job."""
    last_split_at: Instant | None = None
    last_merge_at: Instant | None = None
    last_rebucket_at: Instant | None = None
    in_flight: InFlight | None = None
    failures: Count = 0
    """Decisions in a row that ended without effect."""
    failed_at: Instant | None = None
    """When the last of those ended."""
    failed_action: Literal["split", "merge", "rebucket"] | None = None
    """Which action that was, and is backed off from; absent = both."""
    merge_depths: dict[SegmentId, Count] | None = None
    """Merge depth by segment id, kept through pruning; absent = count it in the layout."""
    pasts: dict[SegmentId, SegmentPast] | None = None
    """By segment id, kept through pruning; absent = as the layout says."""
    hot_keys: list[HotKeyRecord] | None = None
    """As the last answer had them."""
    delivery: Delivery | None = None
    """Last report on how the topic is delivered. Explains slowness; no decision looks at it."""


class GateReading(Wire):
    """One gate that was looked at: what was measured, against which limit, and when it could next pass."""

    gate: str
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    """Distance from passing, in the gate's unit: negative = held."""
    eligible_at: int | None = None
    """The earliest instant at which the gate could pass by time alone, milliseconds; absent = unknown."""
    passed: bool
    segment: int | None = None
    """The segment that the reading is about, when it is about one."""
    detail: str | None = None
    """What numbers cannot say: the rule that a policy breaks."""


class FurtherAction(Wire):
    """One more action of the same evaluation, on another part of the key space (guard `parallelActions`)."""

    action: Literal["split", "merge"]
    segments: list[int]
    reason: str


class SplitAnswer(Wire):
    """`{"action":"split",…}`."""

    action: Literal["split"] = "split"
    segment: int
    reason: str
    gates: list[GateReading] = Field(default_factory=list)
    also: list[FurtherAction] | None = None
    """What else is done now, in this order; absent = nothing."""
    hot_keys: list[HotKeyRecord] | None = None
    """What the next snapshot has to say of hot keys; absent = what this one said."""


class MergeAnswer(Wire):
    """`{"action":"merge",…}`, the pair in the order of hash start."""

    action: Literal["merge"] = "merge"
    segments: tuple[int, int]
    reason: str
    gates: list[GateReading] = Field(default_factory=list)
    also: list[FurtherAction] | None = None
    """What else is done now, in this order; absent = nothing."""
    hot_keys: list[HotKeyRecord] | None = None
    """What the next snapshot has to say of hot keys; absent = what this one said."""


class RebucketAnswer(Wire):
    """`{"action":"rebucket",…}`: each of the segments is replaced by one of the same range with so many buckets."""

    action: Literal["rebucket"] = "rebucket"
    segments: list[int]
    bucket_count: int
    reason: str
    gates: list[GateReading] = Field(default_factory=list)
    hot_keys: list[HotKeyRecord] | None = None
    """As of a split."""


class HoldAnswer(Wire):
    """`{"action":"hold",…}`: `gate` is the one binding gate."""

    action: Literal["hold"] = "hold"
    gate: str
    gates: list[GateReading] = Field(default_factory=list)
    hot_keys: list[HotKeyRecord] | None = None
    """As of an action."""


Answer: TypeAlias = Annotated[SplitAnswer | MergeAnswer | RebucketAnswer | HoldAnswer, Field(discriminator="action")]
ANSWER: TypeAdapter[Any] = TypeAdapter(Answer)
