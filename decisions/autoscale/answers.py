"""Actions of autoscale (split, merge, rebucket), and any of its answers as JSON.

Stage: what `decisions.autoscale.decide` returns. Holds are those of `decisions.kernel.answers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pydantic_core

from decisions.autoscale.gates import Gate
from decisions.autoscale.hot_keys import HotKey, hot_key_fields
from decisions.kernel.answers import Hold, next_due
from decisions.kernel.readings import Reading, gates_to_json, reading_fields

__all__ = ["Action", "Answer", "Hold", "Merge", "Rebucket", "Split", "answer_to_json", "gates_to_json", "next_due"]


@dataclass(frozen=True, slots=True)
class Split:
    """Split one segment. `reason` is `consumer-count` or the rate that is furthest over its threshold."""

    action: ClassVar[Literal["split"]] = "split"
    segment: int
    reason: str
    gates: tuple[Reading[Gate], ...]
    also: "tuple[Split | Merge, ...]" = ()
    """What else is done in the same evaluation, on other parts of the key space (guard `parallelActions`)."""

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

    action: ClassVar[Literal["merge"]] = "merge"
    segments: tuple[int, int]
    reason: str
    gates: tuple[Reading[Gate], ...]
    also: "tuple[Split | Merge, ...]" = ()
    """As of `Split`."""

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

    action: ClassVar[Literal["rebucket"]] = "rebucket"
    segments: tuple[int, ...]
    bucket_count: int
    reason: str
    gates: tuple[Reading[Gate], ...]
    also: tuple[Split | Merge, ...] = ()
    """Nothing: it concerns consumers of the whole topic."""

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


def answer_to_json(answer: Answer, hot_keys: Sequence[HotKey] | None = None) -> bytes:
    """Return the answer as a line of `decide` (`schemas.snapshot.Answer`); `hot_keys`: those of the next snapshot."""
    gates = [reading_fields(reading) for reading in answer.gates]
    keys = {} if hot_keys is None else {"hotKeys": [hot_key_fields(key) for key in hot_keys]}
    if isinstance(answer, Hold):
        return pydantic_core.to_json({"action": "hold", "gate": answer.gate.value, "gates": gates, **keys})
    done: dict[str, object] = (
        {"segment": answer.segment} if isinstance(answer, Split) else {"segments": answer.segments}
    )
    if isinstance(answer, Rebucket):
        done["bucketCount"] = answer.bucket_count
    also = [{"action": action.action, "segments": action.ids, "reason": action.reason} for action in answer.also]
    fields = {"action": answer.action, **done, "reason": answer.reason, "gates": gates}
    return pydantic_core.to_json({**fields, **({"also": also} if also else {}), **keys})
