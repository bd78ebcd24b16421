"""The answer of an evaluation: split one segment, merge two neighbours, or hold; each with the gates that were read.

Stage: what `decisions.autoscale.decide` returns. The wire form is `schemas.snapshot.Answer` (DESIGN section 4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decisions.autoscale.gates import Gate, Reading
from schemas.ids import canonical_json
from schemas.snapshot import GateReading, HoldAnswer, MergeAnswer, SplitAnswer


@dataclass(frozen=True, slots=True)
class Split:
    """Split one segment. `reason` is `consumer-count` or the rate that is furthest over its threshold."""

    segment: int
    reason: str
    gates: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge two neighbours, in the order of their ranges. `reason` is `cold`."""

    segments: tuple[int, int]
    reason: str
    gates: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing, and say why: `binding` is the one reading that holds (docs/gates.md, "Which gate binds")."""

    binding: Reading
    gates: tuple[Reading, ...]
    due: int | None = None
    """See `next_due`."""

    @property
    def gate(self) -> Gate:
        """The binding gate."""
        return self.binding.gate


Answer = Split | Merge | Hold


def next_due(answer: Answer) -> int | None:
    """The earliest instant (ms) at which the same evaluation would act with nothing changed but the time, or None.

    None also for an action, which is due now.
    """
    return answer.due if isinstance(answer, Hold) else None


def answer_to_wire(answer: Answer) -> SplitAnswer | MergeAnswer | HoldAnswer:
    """The answer as JSON model (DESIGN section 4.3)."""
    gates = [
        GateReading(
            gate=reading.gate.value,
            measured=reading.measured,
            limit=reading.limit,
            margin=reading.margin,
            eligible_at=reading.eligible_at,
            passed=reading.passed,
            segment=reading.segment,
            detail=reading.detail,
        )
        for reading in answer.gates
    ]
    if isinstance(answer, Split):
        return SplitAnswer(segment=answer.segment, reason=answer.reason, gates=gates)
    if isinstance(answer, Merge):
        return MergeAnswer(segments=answer.segments, reason=answer.reason, gates=gates)
    return HoldAnswer(gate=answer.gate.value, gates=gates)


def gates_to_json(gates: Sequence[Reading]) -> str:
    """The readings as canonical JSON, as `answer_to_wire` has them; unset fields are left out."""
    return canonical_json([
        {name: value for name, value in zip(_WIRE_NAMES, _values_of(reading), strict=True) if value is not None}
        for reading in gates
    ])  # fmt: skip


_WIRE_NAMES = ("gate", "measured", "limit", "margin", "eligibleAt", "passed", "segment", "detail")


def _values_of(reading: Reading) -> tuple[object, ...]:
    return (
        reading.gate.value, reading.measured, reading.limit, reading.margin,
        reading.eligible_at, reading.passed, reading.segment, reading.detail,
    )  # fmt: skip
