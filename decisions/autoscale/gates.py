"""The gates: every reason for which a topic can be held, as a closed list with a sentence, a unit and a relation each.

Stage: the vocabulary of every answer. `decisions.autoscale.decide` reads gates in the order of this list; docs/gates.md
is made from it (`python -m decisions.autoscale.gates > docs/gates.md`). A gate passes when its relation between
measured and limit holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Gate(str, Enum):
    """What can hold a topic, in the order in which an evaluation looks."""

    INVALID_POLICY = "invalid-policy"
    DISABLED = "disabled"
    IN_FLIGHT = "in-flight"
    RETRY_BACKOFF = "retry-backoff"
    MAX_SEGMENTS = "max-segments"
    SPLIT_COOLDOWN = "split-cooldown"
    CONSUMER_DEMAND = "consumer-demand"
    NOT_THIS_TRIGGER = "not-this-trigger"
    LOAD_MISSING = "load-missing"
    LOAD_STALE = "load-stale"
    SPLIT_THRESHOLDS = "split-thresholds"
    UNSPLITTABLE = "unsplittable"
    MIN_SEGMENTS = "min-segments"
    MERGE_COOLDOWN = "merge-cooldown"
    MERGE_CONSUMERS = "merge-consumers"
    MERGE_THRESHOLDS = "merge-thresholds"
    MAX_DAG_DEPTH = "max-dag-depth"
    MERGE_WINDOW = "merge-window"


class Reading(NamedTuple):
    """One gate as it was found."""

    gate: Gate
    passed: bool
    measured: float | None = None
    limit: float | None = None
    margin: float | None = None
    """Distance from the limit, positive on the passing side, in the gate's unit."""
    eligible_at: int | None = None
    """The earliest instant at which it could pass by time alone, milliseconds; None: time alone does not open it."""
    segment: int | None = None
    """The segment that was measured, when it is about one."""
    detail: str | None = None
    """What numbers cannot say: the rule that a policy breaks."""


@dataclass(frozen=True, slots=True)
class Description:
    """A gate in words: why it holds, what is compared with what, and where the rule comes from."""

    sentence: str
    measured: str
    relation: str
    """How measured stands to limit when the gate passes; empty when nothing is compared."""
    limit: str
    unit: str
    source: str


_SPLIT, _MERGE, _CAPS = 'PIP-483 "Pass 1"', 'PIP-483 "Pass 2"', 'PIP-483 "Caps"'
_RESOLUTION = 'PIP-483 "Policy resolution"'

DESCRIPTIONS: dict[Gate, Description] = {
    Gate.INVALID_POLICY: Description(
        "The effective policy breaks a rule (`detail` names it), so scaling is off for this topic.",
        "", "", "", "", _RESOLUTION,
    ),
    Gate.DISABLED: Description("The effective policy has `enabled = false`.", "", "", "", "", _RESOLUTION),
    Gate.IN_FLIGHT: Description(
        "An earlier decision on this topic is still open.", "time since it was taken", "", "", "ms", _SPLIT
    ),
    Gate.RETRY_BACKOFF: Description(
        "The last decision of this kind ended without effect; the pause doubles each time.",
        "time since it ended", ">=", "pause", "ms", "guard `retryBackoffSeconds`",
    ),
    Gate.MAX_SEGMENTS: Description(
        "The topic has as many active segments as it may.",
        "active segments", "<", "`maxSegments`", "segments", _CAPS,
    ),
    Gate.SPLIT_COOLDOWN: Description(
        "The last split was too recent.", "time since the last split", ">=", "`splitCooldown`", "ms", _SPLIT
    ),
    Gate.CONSUMER_DEMAND: Description(
        "No managed subscription has more consumers than the topic has active segments.",
        "consumers of the largest STREAM or CHECKPOINT subscription", ">", "active segments", "consumers",
        f"{_SPLIT} (a)",
    ),
    Gate.NOT_THIS_TRIGGER: Description(
        "A consumer event evaluates the consumer rule only; load and merges wait for the tick.",
        "", "", "", "", 'PIP-483 "Evaluation triggers"',
    ),
    Gate.LOAD_MISSING: Description(
        "An active segment has no load record: no evidence is neither hot nor cold.",
        "active segments without a record", "<=", "0", "segments", _MERGE,
    ),
    Gate.LOAD_STALE: Description(
        "A load has not been seen for longer than it may be trusted: it is neither hot nor cold.",
        "age of the oldest load", "<=", "`maxLoadAge`", "ms", "guard `maxLoadAgeSeconds`",
    ),
    Gate.SPLIT_THRESHOLDS: Description(
        "No segment with a known load is above a split threshold.",
        "largest rate / split threshold", ">", "1", "ratio", f"{_SPLIT} (b)",
    ),
    Gate.UNSPLITTABLE: Description(
        "The segment that would be split holds a single hash: one hot key.",
        "its width", ">", "1", "hashes", "guard `skipUnsplittable`",
    ),
    Gate.MIN_SEGMENTS: Description(
        "The topic has as few active segments as it may.",
        "active segments", ">", "`minSegments`", "segments", _CAPS,
    ),
    Gate.MERGE_COOLDOWN: Description(
        "The last merge was too recent.", "time since the last merge", ">=", "`mergeCooldown`", "ms", _MERGE
    ),
    Gate.MERGE_CONSUMERS: Description(
        "After a merge some consumer would lack a segment of its own, and split it again.",
        "active segments", ">", "consumers of the largest managed subscription", "segments",
        "guard `mergeKeepsConsumers`",
    ),
    Gate.MERGE_THRESHOLDS: Description(
        "No two neighbours are both cold.",
        "largest rate / merge threshold, of the coldest neighbours", "<", "1", "ratio", _MERGE,
    ),
    Gate.MAX_DAG_DEPTH: Description(
        "The lineages of all cold neighbours have been merged as often as they may.",
        "merges in a lineage, of the shallowest neighbours", "<", "`maxDagDepth`", "merges", _CAPS,
    ),
    Gate.MERGE_WINDOW: Description(
        "No cold neighbours have been cold for long enough.",
        "time for which both have been cold, of the longest", ">=", "`mergeWindow`", "ms", _MERGE,
    ),
}  # fmt: skip


def page() -> str:
    """docs/gates.md."""
    rows = []
    for gate in Gate:
        words = DESCRIPTIONS[gate]
        passes = f"{words.measured} {words.relation} {words.limit}" if words.relation else words.measured or "-"
        rows.append(f"| `{gate.value}` | {words.sentence} | {passes} | {words.unit or '-'} | {words.source} |")
    return _PAGE.format(rows="\n".join(rows))


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

Every hold names exactly one gate: the one that would have to change first for the topic to act.

1. A topic that is switched off or has an open decision is held by that, and nothing else is looked at.
2. A topic that **wants to split** (consumers without a segment, or a segment above a split threshold) is held by the
   first gate that forbids it: `retry-backoff`, `max-segments`, `split-cooldown`, `unsplittable`. A merge that is
   possible is still made.
3. A consumer event that finds no such demand is held by `consumer-demand`.
4. A topic that **wants to merge** (two neighbours are both cold) is held by the first of `retry-backoff`,
   `min-segments`, `merge-consumers`, `max-dag-depth` that forbids it, and after these by the wait that ends last,
   `merge-cooldown` or `merge-window`.
5. A topic **at rest** wants neither. With more segments than `minSegments` it is held by `merge-thresholds`, otherwise
   by `split-thresholds`; when no load is known that could tell, by `load-missing` or `load-stale`.

`next_due` of a hold is the earliest instant at which the same evaluation would act, with nothing changed but the time.
"""

if __name__ == "__main__":
    print(page(), end="")
