"""Gates: every reason for which a topic can be held, and the table that says which of them binds.

Stage: the vocabulary of every answer. `decisions.autoscale.decide` and `decisions.autoscale.fleet` take the binding
gate from `PRECEDENCE`, the job's metrics take their labels from it, and docs/gates.md is made from both tables
(`python -m decisions.autoscale.gates > docs/gates.md`). A new gate is a line in each of `Gate`, `DESCRIPTIONS` and
`PRECEDENCE`, and its reading in `decide` and in `fleet`.
"""

from dataclasses import dataclass
from enum import Enum

from decisions.kernel.precedence import PrecedenceRow


class Gate(str, Enum):
    """Gates that can hold a topic, in the order in which an evaluation looks."""

    INVALID_POLICY = "invalid-policy"
    DISABLED = "disabled"
    IN_FLIGHT = "in-flight"
    RETRY_BACKOFF = "retry-backoff"
    MAX_SEGMENTS = "max-segments"
    SPLIT_COOLDOWN = "split-cooldown"
    CONSUMER_DEMAND = "consumer-demand"
    ENTRY_BUCKETS = "entry-buckets"
    REBUCKET_COOLDOWN = "rebucket-cooldown"
    MAX_ENTRY_BUCKETS = "max-entry-buckets"
    NOT_THIS_TRIGGER = "not-this-trigger"
    LOAD_MISSING = "load-missing"
    LOAD_STALE = "load-stale"
    SPLIT_THRESHOLDS = "split-thresholds"
    UNSPLITTABLE = "unsplittable"
    ONE_HOT_KEY = "one-hot-key"
    MIN_SEGMENTS = "min-segments"
    MERGE_COOLDOWN = "merge-cooldown"
    MERGE_CONSUMERS = "merge-consumers"
    MERGE_THRESHOLDS = "merge-thresholds"
    MAX_DAG_DEPTH = "max-dag-depth"
    MERGE_CAPACITY = "merge-capacity"
    MERGE_WINDOW = "merge-window"
    SETTLING = "settling"


class Situation(Enum):
    """Situations in which an evaluation ends with a hold."""

    SWITCHED_OFF = "switched off"
    WANTS_TO_REBUCKET = "wants to rebucket"
    WANTS_TO_SPLIT = "wants to split"
    NO_DEMAND = "consumer event without demand"
    WANTS_TO_MERGE = "wants to merge"
    UNKNOWN_LOAD = "at rest, load unknown"
    ABOVE_FLOOR = "at rest, above the floor"
    AT_FLOOR = "at rest, at the floor"


@dataclass(frozen=True, slots=True)
class Description:
    """A gate in words: why it holds, what is compared with what, and where the rule comes from."""

    sentence: str
    source: str
    measured: str = ""
    relation: str = ""
    """How measured stands to limit when the gate passes; empty when nothing is compared."""
    limit: str = ""
    unit: str = ""
    metric: str | None = None
    """The counter of PIP-483 "Observability" that counts how often a topic began to be held by it."""


_SPLIT = 'PIP-483 "Pass 1 — SPLIT (fast, lightly coalesced)"'
_MERGE = 'PIP-483 "Pass 2 — MERGE (lazy, rate-limited)"'
_CAPS = 'PIP-483 "Caps"'
_BUCKETS = "Pulsar 5.0, PIP-486; guard `rebuckets`"
_RESOLUTION = 'PIP-483 "Policy resolution (namespace + topic overrides)"'

DESCRIPTIONS: dict[Gate, Description] = {
    Gate.INVALID_POLICY: Description(
        "The effective policy breaks a rule (`detail` names it), so scaling is off for this topic.", _RESOLUTION
    ),
    Gate.DISABLED: Description("The effective policy has `enabled = false`.", _RESOLUTION),
    Gate.IN_FLIGHT: Description(
        "An earlier decision on this topic is still open. A merge that was not applied yet holds no split (guard "
        "`parallelActions`).",
        _SPLIT,
        "time since it was taken",
        "",
        "",
        "ms",
    ),
    Gate.RETRY_BACKOFF: Description(
        "The last decision of this kind ended without effect; the pause doubles each time.",
        "guard `retryBackoffSeconds`",
        "time since it ended",
        ">=",
        "pause",
        "ms",
    ),
    Gate.MAX_SEGMENTS: Description(
        "The topic has as many active segments as it may.",
        _CAPS,
        "active segments",
        "<",
        "`maxSegments`",
        "segments",
        metric="pulsar_scalable_topic_split_suppressed_max_segments_total",
    ),
    Gate.SPLIT_COOLDOWN: Description(
        "The last split was too recent.", _SPLIT, "time since the last split", ">=", "`splitCooldown`", "ms"
    ),
    Gate.CONSUMER_DEMAND: Description(
        "No managed subscription has more consumers than the topic has active segments.",
        f"{_SPLIT} (a)",
        "consumers of the largest STREAM or CHECKPOINT subscription",
        ">",
        "active segments",
        "consumers",
    ),
    Gate.ENTRY_BUCKETS: Description(
        "More consumers than segments, and all of them have an entry bucket; a split is not worth a segment, as the "
        "topic has as many as it may or its busiest segment is below `splitVsRebucketMinMsgRateInThreshold`.",
        _BUCKETS,
        "consumers of the largest STREAM subscription",
        ">",
        "entry buckets of all active segments",
        "consumers",
    ),
    Gate.REBUCKET_COOLDOWN: Description(
        "The last rebucket was too recent.", _BUCKETS, "time since the last rebucket", ">=", "`rebucketCooldown`", "ms"
    ),
    Gate.MAX_ENTRY_BUCKETS: Description(
        "Consumers lack an entry bucket, and every segment has as many as it may or as are wanted of each.",
        _BUCKETS,
        "fewest entry buckets of an active segment",
        "<",
        "the power of two that gives each consumer one, at most `maxEntryBucketsPerSegment`",
        "buckets",
    ),
    Gate.NOT_THIS_TRIGGER: Description(
        "A consumer event evaluates the consumer rule only; load and merges wait for the tick.",
        'PIP-483 "Evaluation triggers"',
    ),
    Gate.LOAD_MISSING: Description(
        "An active segment has no load record, so it is neither hot nor cold.",
        _MERGE,
        "active segments without a record",
        "<=",
        "0",
        "segments",
    ),
    Gate.LOAD_STALE: Description(
        "A load has not been seen for longer than it may be trusted: it is neither hot nor cold.",
        "guard `maxLoadAgeSeconds`",
        "age of the oldest load",
        "<=",
        "`maxLoadAge`",
        "ms",
    ),
    Gate.SPLIT_THRESHOLDS: Description(
        "No segment with a known load is above a split threshold.",
        f"{_SPLIT} (b)",
        "overload: largest rate / split threshold",
        ">",
        "1",
        "ratio",
    ),
    Gate.UNSPLITTABLE: Description(
        "The segment that would be split holds a single hash: one hot key.",
        "guard `skipUnsplittable`",
        "its width",
        ">",
        "1",
        "hashes",
    ),
    Gate.ONE_HOT_KEY: Description(
        "One hot key: splits brought no relief, as nearly all the load stays in one piece; more segments cannot help.",
        "guard `hotKeySplits`",
        "overload: largest rate / split threshold",
        ">",
        "twice what the key was found with",
        "ratio",
    ),
    Gate.MIN_SEGMENTS: Description(
        "The topic has as few active segments as it may.", _CAPS, "active segments", ">", "`minSegments`", "segments"
    ),
    Gate.MERGE_COOLDOWN: Description(
        "The last merge was too recent.", _MERGE, "time since the last merge", ">=", "`mergeCooldown`", "ms"
    ),
    Gate.MERGE_CONSUMERS: Description(
        "After a merge some consumer would lack a segment of its own, and split it again.",
        "guard `mergeKeepsConsumers`",
        "active segments",
        ">",
        "consumers of the largest managed subscription",
        "segments",
    ),
    Gate.MERGE_THRESHOLDS: Description(
        "No two neighbours are both cold.",
        _MERGE,
        "heat: largest rate / merge threshold, of the coldest neighbours",
        "<",
        "1",
        "ratio",
    ),
    Gate.MAX_DAG_DEPTH: Description(
        "The lineages of all cold neighbours have been merged as often as they may; by the guard `explicitLineage` the "
        "longest chain of merges counts, and fades by one for each hour that a segment stands.",
        _CAPS,
        "merges in a lineage, of the shallowest neighbours",
        "<",
        "`maxDagDepth`",
        "merges",
        metric="pulsar_scalable_topic_merge_suppressed_max_depth_total",
    ),
    Gate.MERGE_CAPACITY: Description(
        "A segment has at most `maxEntryBucketsPerSegment`: after a merge consumers that have an entry bucket would "
        "lack it.",
        _BUCKETS,
        "entry buckets that the merge leaves, of the cold neighbours with the most",
        ">=",
        "consumers that have one now",
        "buckets",
    ),
    Gate.MERGE_WINDOW: Description(
        "No cold neighbours have been cold for long enough.",
        _MERGE,
        "time for which both have been cold, of the longest",
        ">=",
        "`mergeWindow`",
        "ms",
    ),
    Gate.SETTLING: Description(
        "Merges wait for load to settle: what was split lately, or has warmed up again after a pause, may come back.",
        "guards `settleSeconds`, `returnsWithinSeconds`",
        "time left, of the cold neighbours that settle first",
        "<=",
        "0",
        "ms",
    ),
}

PRECEDENCE: tuple[PrecedenceRow[Situation, Gate], ...] = (
    PrecedenceRow(
        Situation.SWITCHED_OFF,
        "the policy is broken or says so, or an open decision holds what the topic wants",
        (Gate.INVALID_POLICY, Gate.DISABLED, Gate.IN_FLIGHT),
    ),
    PrecedenceRow(
        Situation.WANTS_TO_REBUCKET,
        "consumers without an entry bucket, and a split is not worth its segment",
        (Gate.RETRY_BACKOFF, Gate.MAX_ENTRY_BUCKETS),
        waits=(Gate.REBUCKET_COOLDOWN,),
    ),
    PrecedenceRow(
        Situation.WANTS_TO_SPLIT,
        "consumers without a segment, or a segment above a split threshold; a merge that is possible is still made",
        (Gate.RETRY_BACKOFF, Gate.MAX_SEGMENTS, Gate.SPLIT_COOLDOWN, Gate.UNSPLITTABLE, Gate.ONE_HOT_KEY),
    ),
    PrecedenceRow(
        Situation.NO_DEMAND,
        "a consumer event that finds a segment, or an entry bucket, for every consumer; it evaluates nothing else",
        (Gate.CONSUMER_DEMAND, Gate.ENTRY_BUCKETS),
    ),
    PrecedenceRow(
        Situation.WANTS_TO_MERGE,
        "two neighbours are both cold",
        (Gate.RETRY_BACKOFF, Gate.MIN_SEGMENTS, Gate.MERGE_CONSUMERS, Gate.MAX_DAG_DEPTH, Gate.MERGE_CAPACITY),
        waits=(Gate.MERGE_COOLDOWN, Gate.MERGE_WINDOW, Gate.SETTLING),
    ),
    PrecedenceRow(
        Situation.UNKNOWN_LOAD,
        "it wants neither, and no load is known that could tell: above the floor of no two neighbours, at it of none",
        (Gate.LOAD_MISSING, Gate.LOAD_STALE),
    ),
    PrecedenceRow(
        Situation.ABOVE_FLOOR, "it wants neither, and has more segments than `minSegments`", (Gate.MERGE_THRESHOLDS,)
    ),
    PrecedenceRow(
        Situation.AT_FLOOR,
        "it wants neither, and has no more segments than `minSegments`, or one",
        (Gate.SPLIT_THRESHOLDS,),
    ),
)
"""Which gate binds: the first situation that a topic is in, and in it the rule of `decisions.kernel.precedence`."""
ROWS = {row.situation: row for row in PRECEDENCE}
BINDING_GATES = tuple(gate for gate in Gate if any(gate in row.forbidding + row.waits for row in PRECEDENCE))
"""The gates that a hold can name, in the order of `Gate`."""


def gates_page() -> str:
    """docs/gates.md."""
    rows = []
    for gate in Gate:
        words = DESCRIPTIONS[gate]
        passes = f"{words.measured} {words.relation} {words.limit}" if words.relation else words.measured or "-"
        rows.append(f"| `{gate.value}` | {words.sentence} | {passes} | {words.unit or '-'} | {words.source} |")
    binds = [
        f"| **{row.situation.value}**: {row.meaning} | {_gate_names(row.forbidding)} | {_gate_names(row.waits)} |"
        for row in PRECEDENCE
    ]
    return _PAGE.format(rows="\n".join(rows), binds="\n".join(binds))


def _gate_names(gates: tuple[Gate, ...]) -> str:
    return ", ".join(f"`{gate.value}`" for gate in gates) or "-"


_PAGE = """# Gates

Every reason for which a topic can be held, in the order in which an evaluation looks. An answer lists every gate that
was looked at, once: `measured` and `limit`, compared as the table says; `margin`, the distance between them, positive
on the passing side (a margin of 0 passes with `>=` and `<=` only); `eligibleAt`, the earliest instant at which time
alone could open it; `segment`, the one that came nearest to passing. Sources marked *guard* name the policy field, off
in the profile `pip-483`. This page is generated: `python -m decisions.autoscale.gates > docs/gates.md`.

| gate | holds because | passes when | unit | source |
| --- | --- | --- | --- | --- |
{rows}

## Which gate binds

Every hold names exactly one gate: the one that would have to change first for the topic to act. The first situation in
this table that the topic is in decides. In it the first gate that forbids binds; when none of them forbids, the wait
that ends last, of equals the first. When all gates of a topic that wants to split or to merge pass, it does.

| situation | the first of these that forbids | the one of these waits that ends last |
| --- | --- | --- |
{binds}

`next_due` of a hold is the earliest instant at which the same evaluation would act, with nothing changed but the time.
"""

if __name__ == "__main__":
    print(gates_page(), end="")
