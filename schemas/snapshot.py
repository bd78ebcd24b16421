"""The snapshot that `decide` evaluates and its answer, as JSON (design "Snapshot and answer").

`anabranch decisions decide` reads one snapshot per line; the `decisions` table keeps the whole snapshot of each
decision in `inputs`, so that any decision can be repeated. `decisions.autoscale.snapshot` converts this into the
evaluator's frozen values.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from schemas.base import Count, Rate, SegmentId, TopicName, Wire
from schemas.kafka.delivery import Delivery
from schemas.kafka.messages import SubscriptionType
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

ENGINE_VERSION = "7"
"""Engine version in every decision row; a change marks decisions that may differ.

It is incremented when the same snapshot may be decided differently, or the same messages lead to another snapshot.

- "2": incarnations of a topic are told apart, reporters are judged by Kafka's time, observed decisions are no failures
- "3": guards of profile `default` against one hot key, reversed merges and one action at a time; several decisions per
  evaluation
- "4": a merge that waits to be applied holds no split (guard `parallelActions`); superseded decisions are no failures;
  bundles: unknown policies hold, and open moves count in the load of brokers
- "5": a decision on a topic that the cluster does not know is a failure; bundles: a move counts until its load is
  reported, and a superseded decision leaves its bundle alone for five minutes
- "6": bundles: no shedder picks a bundle whose last decision has no outcome yet, and Pulsar's own namespaces stay
- "7": profile `default` splits hot segments without a cooldown, and takes a range that is slightly too hot for a key
  only when it is narrow; regrets count for longer, and ask for longer cold instead of longer rests
"""

Trigger = Literal["consumer", "tick"]
"""`consumer` evaluates the consumer rule only, `tick` everything (PIP-483 "Evaluation triggers")."""

Hash = Annotated[int, Field(ge=0, le=65_535)]
Instant = Annotated[int, Field(ge=-(2**53), le=2**53, description="milliseconds since 1970-01-01T00:00:00Z")]


class LoadRecord(Wire):
    """The last accepted load of a segment: four rates per second, and the start times of windows."""

    msg_rate_in: Rate
    bytes_rate_in: Rate
    msg_rate_out: Rate
    bytes_rate_out: Rate
    modified_at: Instant
    """Time at which this record was accepted as a significant change."""
    seen_at: Instant | None = None
    """Time of the last sample of the segment, significant or not; default: `modified_at`."""
    cold_since: Instant | None = None
    """Time since which all four rates have been below the merge thresholds; default: `modified_at`."""
    returned_after: Count | None = None
    """Pause after which the load last returned, milliseconds; 0 = it fell, absent = it never fell."""


class SubscriptionCount(Wire):
    """The sessions of one subscription."""

    type: SubscriptionType
    count: Count


class InFlight(Wire):
    """The open decision of a topic."""

    decision_id: str
    since: Instant
    action: Literal["merge"] | None = None
    """`merge`: only merges are open, and none has been applied yet; absent = nothing is decided meanwhile.

    With the guard `parallelActions` a split may be decided while merges are open.
    """


class SegmentPast(Wire):
    """Origin of an active segment (guard `settleSeconds`)."""

    at: Instant
    """Time at which it was made."""
    made: Literal["split", "merge"]
    regrets: Count = 0
    """Number of merges of its range that were soon reversed by a split."""
    returned_after: Count = 0
    """Pause after which the load of the split segment last returned, milliseconds; 0 = it did not."""
    finest: Count = 0
    """Hashes of the narrowest piece merged into its range."""


class HotKeyRecord(Wire):
    """A hot key: splits brought no relief (guard `hotKeySplits`). Hashes are inclusive."""

    start: Hash
    end: Hash
    within_start: Hash
    within_end: Hash
    """The range that was split in search of it."""
    overload: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Load as a multiple of the split threshold."""
    found_at: Instant
    tries: Count = 1
    """Number of times it was found."""


class Snapshot(Wire):
    """Full input of one evaluation of one topic."""

    topic: TopicName
    now: Instant
    trigger: Trigger = "tick"
    layout: ScalableTopicMetadata
    loads: dict[SegmentId, LoadRecord] = Field(default_factory=dict)
    """By segment id; a missing load is a missing record."""
    consumers: dict[str, SubscriptionCount] = Field(default_factory=dict)
    """By subscription name."""
    policy: AutoScalePolicyOverride = AutoScalePolicyOverride()
    """Override of the profile's defaults; the effective policy when recorded by the job."""
    last_split_at: Instant | None = None
    last_merge_at: Instant | None = None
    last_rebucket_at: Instant | None = None
    in_flight: InFlight | None = None
    failures: Count = 0
    """Successive decisions that ended without effect."""
    failed_at: Instant | None = None
    """Time at which the last of those ended."""
    failed_action: Literal["split", "merge", "rebucket"] | None = None
    """Action of those, which is backed off from; absent = both."""
    merge_depths: dict[SegmentId, Count] | None = None
    """Merge depth by segment id, kept through pruning; absent = counted in the layout."""
    pasts: dict[SegmentId, SegmentPast] | None = None
    """By segment id, kept through pruning; absent = as in the layout."""
    hot_keys: list[HotKeyRecord] | None = None
    """Hot keys of the last answer."""
    delivery: Delivery | None = None
    """Last report on how the topic is delivered. Explains slowness; no decision looks at it."""


class GateReading(Wire):
    """An evaluated gate: measured value, limit, and the next time at which it could pass."""

    gate: str
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    """Distance from passing, in the gate's unit: negative = held."""
    eligible_at: int | None = None
    """Earliest instant at which the gate could pass by time alone, milliseconds; absent = unknown."""
    passed: bool
    segment: int | None = None
    """The segment that the reading is about, if any."""
    detail: str | None = None
    """Details that numbers cannot express: the rule that a policy breaks."""


class FurtherAction(Wire):
    """A further action of the same evaluation, on another part of the key space (guard `parallelActions`)."""

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
    """Further actions to take now, in this order; absent = none."""
    hot_keys: list[HotKeyRecord] | None = None
    """Hot keys for the next snapshot; absent = those of this one."""


class MergeAnswer(Wire):
    """`{"action":"merge",…}`, the pair in the order of hash start."""

    action: Literal["merge"] = "merge"
    segments: tuple[int, int]
    reason: str
    gates: list[GateReading] = Field(default_factory=list)
    also: list[FurtherAction] | None = None
    """Further actions to take now, in this order; absent = none."""
    hot_keys: list[HotKeyRecord] | None = None
    """Hot keys for the next snapshot; absent = those of this one."""


class RebucketAnswer(Wire):
    """`{"action":"rebucket",…}`: replaces each segment by one of the same range with this many buckets."""

    action: Literal["rebucket"] = "rebucket"
    segments: list[int]
    bucket_count: int
    reason: str
    gates: list[GateReading] = Field(default_factory=list)
    hot_keys: list[HotKeyRecord] | None = None
    """Hot keys for the next snapshot; absent = those of this one."""


class HoldAnswer(Wire):
    """`{"action":"hold",…}`: `gate` is the one binding gate."""

    action: Literal["hold"] = "hold"
    gate: str
    gates: list[GateReading] = Field(default_factory=list)
    hot_keys: list[HotKeyRecord] | None = None
    """Hot keys for the next snapshot; absent = those of this one."""


Answer: TypeAlias = Annotated[SplitAnswer | MergeAnswer | RebucketAnswer | HoldAnswer, Field(discriminator="action")]
ANSWER: TypeAdapter[Any] = TypeAdapter(Answer)
