"""Which gate binds: a table with a row for each situation, and a rule that is the same in every row.

Stage: between a family's readings and its answer. Rows stand in the order in which they are looked at: the first whose
situation a subject is in says which gates may hold it there. Of these the first that forbids binds; when none does, the
wait that ends last, of equals the first. When all of them pass, nothing holds the subject, and it acts.

The same table serves an evaluation of one subject, here, and one over columns (`decisions.autoscale.fleet`), and the
pages that explain them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from decisions.kernel.readings import GateT, Reading, opens_at

SituationT = TypeVar("SituationT", bound=Enum)
"""A family's own enum of situations."""


@dataclass(frozen=True, slots=True)
class PrecedenceRow(Generic[SituationT, GateT]):
    """The gates that may bind in one situation."""

    situation: SituationT
    meaning: str
    """When a subject is in this situation, in a sentence for people."""
    forbidding: tuple[GateT, ...]
    """The first of these that does not pass binds."""
    waits: tuple[GateT, ...] = ()
    """When all of `forbidding` pass: the one of these that ends last."""

    def failing(self, readings: Iterable[Reading[GateT]]) -> list[Reading[GateT]]:
        """The readings that hold a subject in this situation, in the row's order; empty when it may act."""
        if not (by_gate := {reading.gate: reading for reading in readings if not reading.passed}):
            return []
        return [by_gate[gate] for gates in (self.forbidding, self.waits) for gate in gates if gate in by_gate]

    def binding(self, failing: Sequence[Reading[GateT]]) -> Reading[GateT] | None:
        """The one of the failing readings that binds; None when there is none."""
        if not failing:
            return None
        if failing[0].gate in self.forbidding:
            return failing[0]
        return max(failing, key=opens_at)


def binding_reading(
    table: Iterable[PrecedenceRow[SituationT, GateT]], situations: Mapping[SituationT, Iterable[Reading[GateT]]]
) -> Reading[GateT]:
    """Return the reading that binds a subject in these situations.

    `situations` has the readings that count in each situation. Raises `LookupError` when nothing holds the subject.
    """
    for row in table:
        if (readings := situations.get(row.situation)) is not None:
            bound = row.binding(row.failing(readings))
            if bound is not None:
                return bound
    raise LookupError(f"no gate binds in {[situation.name for situation in situations]}")
