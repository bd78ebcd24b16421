"""Actions of autoscale (split, merge, rebucket), and any of its answers as JSON.

Stage: what `decisions.autoscale.decide` returns. Holds are those of `decisions.kernel.answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from decisions.autoscale.gates import Gate
from decisions.autoscale.hot_keys import HotKey
from decisions.kernel.answers import Hold, next_due
from decisions.kernel.readings import Reading, gates_to_json
from schemas.snapshot import (
    FurtherAction,
    GateReading,
    HoldAnswer,
    HotKeyRecord,
    MergeAnswer,
    RebucketAnswer,
    SplitAnswer,
)

__all__ = ["Action", "Answer", "Hold", "Merge", "Rebucket", "Split", "answer_to_wire", "gates_to_json", "next_due"]


@dataclass(frozen=True, slots=True)
class Split:
    """Split one segment. `reason` is `consumer-count` or the rate that is furthest over its threshold."""

    segment: int
    reason: str
    gates: tuple[Reading[Gate], ...]
    also: tuple[Split | Merge, ...] = ()
    """What else is done in the same evaluation, on other parts of the key space (guard `parallelActions`)."""

    @property
    def action(self) -> Literal["split"]:
        """`split`."""
        return "split"

    @property
    def ids(self) -> list[int]:
        """The segment."""
        return [self.segment]

    @property
    def arguments(self) -> Mapping[str, object]:
        """The segment, as the column `arguments` of a decision has it."""
        return {"segments": self.ids}


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge two neighbours, in the order of their ranges. `reason` is `cold`."""

    segments: tuple[int, int]
    reason: str
    gates: tuple[Reading[Gate], ...]
    also: tuple[Split | Merge, ...] = ()
    """As of `Split`."""

    @property
    def action(self) -> Literal["merge"]:
        """`merge`."""
        return "merge"

    @property
    def ids(self) -> list[int]:
        """Both segments."""
        return list(self.segments)

    @property
    def arguments(self) -> Mapping[str, object]:
        """Both segments, as the column `arguments` of a decision has them."""
        return {"segments": self.ids}


@dataclass(frozen=True, slots=True)
class Rebucket:
    """Replace segments by ones of the same range with more entry buckets, in one decision.

    `reason` is `below-split-rate-floor` or `at-max-segments`: why consumers are not given a segment.
    """

    segments: tuple[int, ...]
    bucket_count: int
    reason: str
    gates: tuple[Reading[Gate], ...]
    also: tuple[Split | Merge, ...] = ()
    """Nothing: it concerns consumers of the whole topic."""

    @property
    def action(self) -> Literal["rebucket"]:
        """`rebucket`."""
        return "rebucket"

    @property
    def ids(self) -> list[int]:
        """All the segments, by id."""
        return list(self.segments)

    @property
    def arguments(self) -> Mapping[str, object]:
        """The segments and their new number of buckets, as the column `arguments` of a decision has them."""
        return {"segments": self.ids, "bucketCount": self.bucket_count}


Action = Split | Merge | Rebucket
Answer = Action | Hold[Gate]


def answer_to_wire(
    answer: Answer, hot_keys: Sequence[HotKey] | None = None
) -> SplitAnswer | MergeAnswer | RebucketAnswer | HoldAnswer:
    """Return the answer as JSON model, a line of `decide`; `hot_keys`: those of the next snapshot."""
    keys = None if hot_keys is None else [HotKeyRecord(**key._asdict()) for key in hot_keys]
    gates = [
        GateReading(
            **{name: getattr(reading, name) for name in Reading.__struct_fields__} | {"gate": reading.gate.value}
        )
        for reading in answer.gates
    ]
    if isinstance(answer, Hold):
        return HoldAnswer(gate=answer.gate.value, gates=gates, hot_keys=keys)
    if isinstance(answer, Rebucket):
        return RebucketAnswer(
            segments=answer.ids, bucket_count=answer.bucket_count, reason=answer.reason, gates=gates, hot_keys=keys
        )
    also = [
        FurtherAction(action=further.action, segments=further.ids, reason=further.reason) for further in answer.also
    ] or None
    if isinstance(answer, Split):
        return SplitAnswer(segment=answer.segment, reason=answer.reason, gates=gates, also=also, hot_keys=keys)
    return MergeAnswer(segments=answer.segments, reason=answer.reason, gates=gates, also=also, hot_keys=keys)
