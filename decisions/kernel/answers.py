"""Answers of an evaluation: one action or a hold, each with all the gates that were read.

Stage: between a family's `decide` and those who write its answer down. A family's actions are classes of its own that
have what `Action` asks for, so that a row of the table `decisions` is written without knowing the family.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol

from decisions.kernel.readings import GateT, Reading


class Action(Protocol[GateT]):
    """Something to do now."""

    @property
    def action(self) -> str:
        """Name of the action, such as `split`."""

    @property
    def arguments(self) -> Mapping[str, object]:
        """Subject of the action as JSON: `{"segments": [3]}`."""

    @property
    def reason(self) -> str:
        """Cause of the action, in one word."""

    @property
    def gates(self) -> tuple[Reading[GateT], ...]:
        """All the gates that were read, in order."""


@dataclass(frozen=True, slots=True)
class Hold(Generic[GateT]):
    """Do nothing, and say why: `binding` is the one reading that holds (`decisions.kernel.precedence`)."""

    binding: Reading[GateT]
    gates: tuple[Reading[GateT], ...]
    due: int | None = None
    """See `next_due`."""

    @property
    def gate(self) -> GateT:
        """The binding gate."""
        return self.binding.gate


def next_due(answer: Action[GateT] | Hold[GateT]) -> int | None:
    """Return the earliest instant (ms) at which the same evaluation would act if only time passed.

    None if it never would, and for an action, which is due now.
    """
    return answer.due if isinstance(answer, Hold) else None
